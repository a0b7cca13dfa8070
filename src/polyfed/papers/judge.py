"""Whether a paper's claims hold: paired differences over seeds with their t interval, and no more than they say."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean, stdev

from polyfed.papers.recipe import Claim, Item, Spot

LEVEL = 0.95
HOLDS, FAILS, UNDECIDED, UNMEASURED = "holds", "does not hold", "undecided", "not measured"
BySeed = Mapping[int, float]
Numbers = Callable[[Spot], BySeed]  # the numbers of a cell over its seeds, in the unit that is shown


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with its 95 % t interval; one seed has no interval."""

    mean: float
    low: float
    high: float
    seeds: int

    @staticmethod
    def of(values: list[float]) -> "Interval":
        """The interval of some differences."""
        count = len(values)
        if count == 0:
            return Interval(math.nan, math.nan, math.nan, 0)
        mean = fmean(values)
        if count == 1:
            return Interval(mean, -math.inf, math.inf, 1)
        from scipy.stats import t

        half = float(t.ppf(0.5 + LEVEL / 2, count - 1)) * stdev(values) / math.sqrt(count)
        return Interval(mean, mean - half, mean + half, count)

    def word(self, within: float) -> str:
        """What it says of a claim that allows to lie behind by `within`."""
        if not self.seeds:
            return UNMEASURED
        if self.low > -within:
            return HOLDS
        return FAILS if self.high <= -within else UNDECIDED

    def in_words(self) -> str:
        """`+1.20 [+0.31, +2.09] over 3 seeds`."""
        if not self.seeds:
            return "no pair of seeds"
        if self.seeds == 1:
            return f"{self.mean:+.2f} with one seed"
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}] over {self.seeds} seeds"


@dataclass(frozen=True)
class Pair:
    """One comparison of a claim: over the last third, which is what counts, and at the end beside it.

    Where one side has a number only at the end (it was finished after the last round), the end counts for both.
    """

    ours: Spot
    theirs: Spot | float
    third: Interval
    end: Interval

    def named(self) -> str:
        """`DistFL against Credit (20 %, ACC)`."""
        if isinstance(self.theirs, float):
            return f"{' / '.join(name for name in self.ours if name != 'all')} against {self.theirs:g}"
        both = list(zip(self.ours, self.theirs, strict=True))
        ours, theirs = zip(*[(a, b) for a, b in both if a != b], strict=True)
        same = [a for a, b in both if a == b and a != "all"]
        where = f" ({', '.join(same)})" if same else ""
        return f"{' / '.join(ours)} against {' / '.join(theirs)}{where}"


@dataclass(frozen=True)
class Verdict:
    """What became of a claim."""

    claim: Claim
    pairs: list[Pair]
    word: str
    at_end: str  # the word by the last round alone

    @property
    def weakest(self) -> Pair | None:
        """The pair that speaks against the claim most."""
        measured = [pair for pair in self.pairs if pair.third.seeds]
        return min(measured, key=lambda pair: pair.third.mean, default=None)

    def in_words(self) -> str:
        """What came out and what was expected; how many pairs say what, and the weakest; the end, if it says else."""
        said = f"**{self.word}** ({self.claim.expected})"
        pair = self.weakest
        if pair is None:
            return said
        parts = [said]
        if len(self.pairs) > 1:
            words = Counter(one.third.word(self.claim.within) for one in self.pairs)
            parts.append(f"{_counted(words, len(self.pairs))}; the weakest, {pair.named()}")
        parts.append(pair.third.in_words())
        if self.at_end != self.word:
            parts.append(f"by the last round alone: {self.at_end}")
        return ", ".join(parts)


SAYS = {HOLDS: "for it", FAILS: "against it", UNDECIDED: "open", UNMEASURED: "not measured"}


def _counted(words: Mapping[str, int], pairs: int) -> str:
    """`of 20 pairs 1 for it, 8 against it, 11 open`; `all 4 pairs for it`."""
    each = [(word, words[word]) for word in SAYS if words.get(word)]
    if len(each) == 1:
        return f"{'both' if pairs == 2 else f'all {pairs}'} pairs {SAYS[each[0][0]]}"
    return f"of {pairs} pairs " + ", ".join(f"{count} {SAYS[word]}" for word, count in each)


def judge(item: Item, third: Numbers, end: Numbers, only_at_end: Callable[[Spot], bool]) -> list[Verdict]:
    """Every claim of an item; `third` and `end` give the numbers of a cell by seed."""

    def compared(claim: Claim, ours: Spot, theirs: Spot | float) -> Pair:
        ends = item.judged == "end" or any(only_at_end(spot) for spot in (ours, theirs) if isinstance(spot, tuple))
        at_end = _interval(claim, ours, theirs, end)
        return Pair(ours, theirs, at_end if ends else _interval(claim, ours, theirs, third), at_end)

    return [_judged(claim, [compared(claim, *pair) for pair in claim.pairs(item)]) for claim in item.claims]


def _judged(claim: Claim, pairs: list[Pair]) -> Verdict:
    word = together([pair.third.word(claim.within) for pair in pairs])
    return Verdict(claim, pairs, word, together([pair.end.word(claim.within) for pair in pairs]))


def together(words: list[str]) -> str:
    """A claim about several pairs holds if all do, and fails if one does; otherwise it is open."""
    if not words or all(word == UNMEASURED for word in words):
        return UNMEASURED
    if FAILS in words:
        return FAILS
    return HOLDS if all(word == HOLDS for word in words) else UNDECIDED


def _interval(claim: Claim, ours: Spot, theirs: Spot | float, numbers: Numbers) -> Interval:
    a = numbers(ours)
    b = dict.fromkeys(a, theirs) if isinstance(theirs, float) else numbers(theirs)
    sign = -1.0 if claim.less else 1.0
    return Interval.of([sign * (a[seed] - b[seed]) for seed in sorted(a) if seed in b])
