"""Tables of results: mean ± std over seeds, the best and the second best, and the differences to a baseline."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from statistics import fmean, stdev
from typing import Any, Literal

from polyfed.comparison.folder import Found
from polyfed.comparison.values import word
from polyfed.errors import UsageError
from polyfed.measure.guarantee import privacy_sentence
from polyfed.measure.paired import FEWEST_SEEDS, LEVEL, by_client, by_seed, differences
from polyfed.measure.seconds import PHASES, outside_training, phases_in_words
from polyfed.report.base_rate import with_base_rates
from polyfed.report.forms import BEST, SECOND, Entry, Rows, Table
from polyfed.report.names import as_written

MINUS = "−"  # not the hyphen
PERCENT, SIZE, TIME = "percent", "bytes", "seconds"
CAPTION = (
    "global: accuracy of the one global model on the global test set; personal: mean over clients of each client's "
    "own model on its local test, after finish; head, mid, tail: mean recall of the frequent, middle and rare third "
    "of the classes under the personal models; bytes: up and down in training."
)


@dataclass(frozen=True)
class Column:
    """A number of a summary: its name, its unit, where it is; if each client has one of its own; what is better."""

    name: str
    unit: str
    get: Callable[[Found], float | None]
    per_client: bool = False
    better: Literal["more", "less", "neither"] = "more"

    @property
    def key(self) -> str:
        """What it is called on a command line: `worst-10`."""
        return "-".join(self.name.removesuffix(" %").split())


def at(path: str) -> Callable[[Found], float | None]:
    """The number at a dotted place of a summary; None where there is none."""

    def get(found: Found) -> float | None:
        value: Any = found.summary
        for key in path.split("."):
            value = None if value is None else value.get(key)
        return value

    return get


CAPTION_OF_MASKS = (
    "Labels are masks. mIoU, pixAcc, mClsAcc: mean intersection over union, share of right pixels and mean recall of "
    "classes of the one global model on the global test set; personal: mean over clients of the share of right pixels "
    "of each client's own model on its local test, after finish; personal mIoU: the same of the mean intersection over "
    "union, over the classes that are there; bytes: up and down in training."
)
COLUMNS = (
    Column("global", PERCENT, at("global.accuracy")),
    Column("personal", PERCENT, at("personal.accuracy"), per_client=True),
    Column("head", PERCENT, at("personal.head")),
    Column("mid", PERCENT, at("personal.mid")),
    Column("tail", PERCENT, at("personal.tail")),
    Column("worst 10 %", PERCENT, at("personal.worst10")),
    Column("bytes", SIZE, lambda found: found.summary["bytes"]["up"] + found.summary["bytes"]["down"]),
    Column("seconds", TIME, at("seconds.total")),
)
MASKS = (
    Column("mIoU", PERCENT, at("global.miou")),
    Column("pixAcc", PERCENT, at("global.accuracy")),
    Column("mClsAcc", PERCENT, at("global.balanced")),
    Column("personal", PERCENT, at("personal.accuracy"), per_client=True),
    Column("personal mIoU", PERCENT, at("personal.miou")),
    *COLUMNS[-2:],
)  # what a table has where labels are masks
# of the same run in which nobody ever attacks
BASE_RATE = Column("asr base", PERCENT, at("threats.base"), better="neither")
THREATS = (
    Column("acc", PERCENT, at("threats.acc")),  # of honest clients under attack, on the global test set
    Column("asr", PERCENT, at("threats.asr"), better="less"),  # the success rate of the attack
    Column("precision", PERCENT, at("threats.precision")),  # of the suspects that a defence named
    Column("recall", PERCENT, at("threats.recall")),
)  # what a table of attacks and defences has
CAPTION_OF_THREATS = (
    "acc: accuracy of the models that honest clients would be sent, on the global test set; asr: how often these make "
    "the mistake that the attack is after, less is better; asr base: how often they make it where nobody ever attacks; "
    "precision, recall: of the suspects that the defence named."
)
MORE = (
    *(column for column in MASKS if column not in COLUMNS and column.name != "personal"),
    Column("own mIoU", PERCENT, at("personal_classes.miou")),  # of each client's own classes, on the global test set
    Column("oracle mIoU", PERCENT, at("oracle.global.miou")),
    Column("balanced", PERCENT, at("personal.balanced")),
    Column("best 10 %", PERCENT, at("personal.best10")),
    Column("before finish", PERCENT, at("personal_before.accuracy")),
    Column("selected", PERCENT, at("personal_selected.accuracy")),
    Column("own classes", PERCENT, at("personal_classes.accuracy")),
    Column("global local", PERCENT, at("global_local.accuracy")),
    Column("held out", PERCENT, at("heldout.accuracy")),
    Column("global balanced", PERCENT, at("global.balanced")),
    Column("global head", PERCENT, at("global.head")),
    Column("global mid", PERCENT, at("global.mid")),
    Column("global tail", PERCENT, at("global.tail")),
    *THREATS[:2],
    BASE_RATE,
    *THREATS[2:],
)  # what a table has where it is asked for


def usual_columns(found: Sequence[Found]) -> Sequence[Column]:
    """The columns of a table where nobody says: other ones where all labels are masks."""
    return MASKS if _of_masks([one.summary for one in found]) else COLUMNS


def caption(summaries: Sequence[Mapping[str, Any]]) -> str:
    """What the columns of a table of these runs are."""
    return CAPTION_OF_MASKS if _of_masks(summaries) else CAPTION


def _of_masks(summaries: Sequence[Mapping[str, Any]]) -> bool:
    measures = ("global", "personal", "personal_classes")
    return bool(summaries) and all(any("miou" in (one.get(m) or {}) for m in measures) for one in summaries)


def choose_columns(names: Sequence[str] | None) -> Sequence[Column] | None:
    """The columns of these names, in this order; None where there are no names: then the usual ones do."""
    if names is None:
        return None
    known = {column.key: column for column in (*COLUMNS, *MORE)}
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        said = f"there is no column '{unknown[0]}'" if unknown else "a table needs a column"
        raise UsageError(f"{said}; there are {', '.join(known)}")
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UsageError(f"the column '{twice[0]}' is given twice")
    return [known[name] for name in names]


SAMPLED = {
    "personal_classes": "PA_cls on {}, equally many of each class",
    "global_between": "GA before the last round on {}, in the end on all",
}  # what is said where a number of a summary's `tested` is smaller than the global test set


@dataclass(frozen=True)
class Score:
    """A column of a row over its seeds; against the baseline: the difference, p, in how many seeds clients agree."""

    values: Mapping[int, float]
    delta: float | None = None
    p: float | None = None
    clients: tuple[int, int] | None = None

    @property
    def mean(self) -> float:
        """Over seeds."""
        return fmean(self.values.values())

    @property
    def std(self) -> float | None:
        """Over seeds."""
        return stdev(self.values.values()) if len(self.values) > 1 else None

    def text(self, unit: str) -> str:
        """For people."""
        if not self.values:
            return "–"
        if unit == PERCENT:
            return f"{100 * self.mean:.1f}" + ("" if self.std is None else f" ± {100 * self.std:.1f}")
        return size(self.mean) if unit == SIZE else f"{self.mean:.1f}"

    @property
    def beside(self) -> str:
        """What is said against the baseline."""
        if self.delta is None:
            return ""
        star = "*" if self.p is not None and self.p < LEVEL else ""
        dagger = f" †{self.clients[0]}/{self.clients[1]}" if self.clients and self.clients[0] else ""
        return f"({round(100 * self.delta, 1) + 0.0:+.1f}{star}{dagger})".replace("-", MINUS)


def comparison_table(
    found: Sequence[Found],
    baseline: str | None = None,
    columns: Sequence[Column] | None = None,
    notes: Sequence[str] = (),
) -> Table:
    """A row per method and setting, over its seeds; against a baseline if there is one.

    Beside the success rate of attacks stands its base rate, where the comparison holds it.
    """
    found = with_base_rates(found)
    columns = _with_base_rate(usual_columns(found) if columns is None else columns, found)
    groups: dict[tuple[str, ...], dict[str, list[Found]]] = {}
    for one in found:
        rows = groups.setdefault(tuple(word(value) for value in one.setting.values()), {})
        rows.setdefault(one.row, []).append(one)
    keys, own = list(found[0].setting) if found else [], _differing(found)
    table = Table(["method", *own, *keys, *(column.name for column in columns)], 1 + len(own) + len(keys), [], [])
    everything: list[Score] = []
    for setting, rows in groups.items():
        base = rows.get(baseline or "", [])
        scores = {row: [_score(column, runs, base) for column in columns] for row, runs in rows.items()}
        values = {row: [word(runs[0].own[key]) for key in own] for row, runs in rows.items()}
        table.groups.append(_entries(scores, {row: [*values[row], *setting] for row in rows}, columns))
        for row, runs in rows.items():
            said = dict(zip([*own, *keys], [*values[row], *setting], strict=True))
            labels = {"method": row, **said, "seeds": len(runs)}
            table.numbers.append(labels | _numbers(scores[row], columns, baseline is not None))
            everything += scores[row]
    notes = [*_private(found), *_shared(found), *_remarks(found), *notes]
    table.legend = [*_legend(baseline, everything), *_unfinished(found), *_sampled(found), *_times(found), *notes]
    return table


def threats_table(found: Sequence[Found], baseline: str | None = None) -> Table | None:
    """What attacks achieve and defences find, a row per method and setting; None where no finished run measured it."""
    attacked = [one for one in found if THREATS[0].get(one) is not None]
    if not attacked:
        return None
    columns = [column for column in THREATS if any(column.get(one) is not None for one in attacked)]
    table = comparison_table(attacked, baseline, columns)
    kinds = ("attack", "defence")
    told = [dict.fromkeys(str(one.summary["threats"].get(kind)) for one in attacked) for kind in kinds]
    table.legend = ["; ".join(f"{kind}: {', '.join(names)}" for kind, names in zip(kinds, told, strict=True))]
    return table


def _with_base_rate(columns: Sequence[Column], found: Sequence[Found]) -> list[Column]:
    if BASE_RATE in columns or all(BASE_RATE.get(one) is None for one in found):
        return list(columns)
    return [each for column in columns for each in ([column, BASE_RATE] if column.key == "asr" else [column])]


def _remarks(found: Sequence[Found]) -> list[str]:
    """What runs did otherwise than people expect, once for each row."""
    return list(dict.fromkeys(f"{one.row}: {said}" for one in found for said in one.summary.get("remarks") or ()))


def _differing(found: Sequence[Found]) -> list[str]:
    """The keys that rows set for themselves and in which they differ."""
    return [key for key in (found[0].own if found else ()) if len({word(one.own[key]) for one in found}) > 1]


def _score(column: Column, runs: Sequence[Found], base: Sequence[Found]) -> Score:
    ours, theirs = ({one.seed: v for one in each if (v := column.get(one)) is not None} for each in (runs, base))
    pairs = differences(ours, theirs)
    if column.unit != PERCENT or runs is base or not pairs:
        return Score(ours)
    delta = fmean(pairs)
    return Score(ours, delta, by_seed(ours, theirs), _agreeing(runs, base, delta) if column.per_client else None)


def _agreeing(runs: Sequence[Found], base: Sequence[Found], delta: float) -> tuple[int, int] | None:
    """In how many of the seeds the clients differ, by themselves, as the mean does."""
    theirs = {one.seed: one.clients for one in base}
    tests = [test for one in runs if (test := by_client(one.clients, theirs.get(one.seed, {})))]
    agreeing = [mean for mean, p in tests if p < LEVEL and mean * delta > 0]
    return (len(agreeing), len(tests)) if tests else None


def _entries(scores: Mapping[str, list[Score]], labels: Mapping[str, Sequence[str]], columns: Sequence[Column]) -> Rows:
    """The rows of one setting with their labels, ranked against each other."""
    ranks = [_ranks([row[place] for row in scores.values()], column) for place, column in enumerate(columns)]
    made = []
    for number, (row, each) in enumerate(scores.items()):
        cells = [
            Entry(score.text(column.unit), rank[number], score.beside)
            for score, column, rank in zip(each, columns, ranks, strict=True)
        ]
        made.append([Entry(as_written(row)), *map(Entry, labels[row]), *cells])
    return made


def _ranks(scores: Sequence[Score], column: Column) -> list[str]:
    """Best, and second where another comes behind, by the number that is shown; who lacks a seed is not ranked."""
    seeds = max(len(score.values) for score in scores)
    shown = [round(100 * s.mean, 1) if s.values and len(s.values) == seeds else None for s in scores]
    order = sorted({value for value in shown if value is not None}, reverse=column.better == "more")
    if column.unit != PERCENT or column.better == "neither" or len(order) < 2:
        return [""] * len(scores)
    second = order[1] if len(order) > 2 else None
    return [BEST if v == order[0] else SECOND if v is not None and v == second else "" for v in shown]


def _numbers(scores: Sequence[Score], columns: Sequence[Column], against: bool) -> dict[str, Any]:
    """Plain numbers for a spreadsheet; what is missing stays empty."""
    made: dict[str, Any] = {}
    for score, column in zip(scores, columns, strict=True):
        made[f"{column.name} mean"] = score.mean if score.values else ""
        made[f"{column.name} std"] = "" if score.std is None else score.std
        if against and column.unit == PERCENT:
            made[f"{column.name} delta"] = "" if score.delta is None else score.delta
            made[f"{column.name} p"] = "" if score.p is None else score.p
            if column.per_client:
                made[f"{column.name} seeds whose clients agree"] = score.clients[0] if score.clients else ""
    return made


def _legend(baseline: str | None, scores: Iterable[Score]) -> list[str]:
    """What the marks mean, for those that are there."""
    set_against = [score for score in scores if score.delta is not None]
    if baseline is None or not set_against:
        return [] if baseline is None else [f"there is nothing to set against {as_written(baseline)} yet"]
    lines = [f"(+x): difference to {as_written(baseline)}, mean over seeds"]
    if all(score.p is None for score in set_against):
        lines[0] += f"; tested from {FEWEST_SEEDS} seeds on"
    else:
        lines.append(f"*: p < {LEVEL:g} in a t-test paired by seed, two-sided, not corrected for the number of tests")
    if any("†" in score.beside for score in set_against):
        lines.append(
            "†k/n: in k of n seeds the clients differ as the mean does (Wilcoxon's signed ranks, paired by client in "
            f"that seed, p < {LEVEL:g}); descriptive, since the clients of a seed train together"
        )
    return lines


def _shared(found: Sequence[Found]) -> list[str]:
    """Which rows have their rounds from another's runs."""
    rows = {PurePath(str(one.summary.get("run"))).name: one.row for one in found}
    takes: dict[str, str] = {}
    for one in found:
        if one.summary.get("phase_one"):
            run = PurePath(one.summary["phase_one"]["run"]).name
            takes[one.row] = rows.get(run, run)
    said = "; ".join(f"{as_written(row)} takes its rounds from {as_written(base)}" for row, base in takes.items())
    return [f"{said}: they are made once, and count in the bytes and seconds of both"] if said else []


def _private(found: Iterable[Found]) -> list[str]:
    """What each run's privacy is worth, once for all runs of which the same can be said."""
    said: dict[str, list[str]] = {}
    for one in found:
        if sentence := privacy_sentence(one.summary.get("privacy")):
            said.setdefault(sentence, []).append(one.row)
    return [f"{', '.join(dict.fromkeys(names))}: {sentence}" for sentence, names in said.items()]


def _unfinished(found: Iterable[Found]) -> list[str]:
    """Which runs have clients whose finish failed, and how these do as they are."""
    lines = []
    for one in found:
        failed, accuracy = one.summary.get("unfinished"), at("personal_unfinished.accuracy")(one)
        if failed:
            how = "" if accuracy is None else f", and have {100 * accuracy:.1f} without it"
            who = f"{len(failed)} of {one.summary['clients']}" if "clients" in one.summary else str(len(failed))
            whose = f"{as_written(one.row)}, seed {one.seed}"
            lines.append(f"{whose}: finish failed on {who} clients, which are not in personal{how}")
    return lines


def _sampled(found: Iterable[Found]) -> list[str]:
    """In which runs PA_cls, or GA before the last round, was measured on less than the whole global test set."""
    rows: dict[str, list[str]] = {}
    for one in found:
        tested = one.summary.get("tested") or {}
        for key, said in SAMPLED.items():
            count, whole = tested.get(key, 0), tested.get("global", 0)
            if 0 < count < whole:
                size = f"{count} of the {whole} samples of the global test set"
                rows.setdefault(said.format(size), []).append(as_written(one.row))
    return [f"{said}: {', '.join(dict.fromkeys(each))}" for said, each in rows.items()]


def _times(found: Sequence[Found]) -> list[str]:
    """Where the seconds went, over all runs; then the rows that spent more of them outside training than in it."""
    rows: dict[str, list[Mapping[str, float]]] = {}
    for one in found:
        if set(PHASES) <= one.summary["seconds"].keys():
            rows.setdefault(one.row, []).append(one.summary["seconds"])
    if not rows:
        return []
    every = {row: {phase: sum(run[phase] for run in runs) for phase in PHASES} for row, runs in rows.items()}
    together = {phase: sum(row[phase] for row in every.values()) for phase in PHASES}
    elsewhere = {row: outside_training(seconds) for row, seconds in every.items()}
    lines = [f"{as_written(row)}: {where}" for row, where in elsewhere.items() if where]
    return [f"seconds by phase, {len(found)} run{'s'[: len(found) > 1]}: {phases_in_words(together)}", *lines]


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def split_picture(described: Mapping[str, Any], most: int = 40) -> str:
    """Who holds what: a row per client, a block per class as tall as its share of the largest cell."""
    clients = described["clients"]
    largest = max((max(c["counts"]) for c in clients), default=1) or 1
    blocks = " ▁▂▃▄▅▆▇█"
    lines = []
    for client in clients[:most]:
        bars = "".join(blocks[math.ceil(8 * n / largest)] for n in client["counts"])
        sizes = f"{client['train']:>6} {client['val']:>5} {client['test']:>5}"
        lines.append(f"{client['id']:>6} {sizes}  |{bars}|")
    if len(clients) > most:
        lines.append(f"   ... and {len(clients) - most} more clients")
    return "\n".join([f"{'client':>6} {'train':>6} {'val':>5} {'test':>5}  training samples by class", *lines])


def split_text(described: Mapping[str, Any]) -> str:
    """A split in words and blocks."""
    facts = [
        f"{described['total']} samples, {described['classes']} classes, {len(described['clients'])} clients, "
        f"{described['global_test']} in the global test set",
        f"imbalance factor {described['imbalance_factor']:.3g}; "
        f"mean distance to the global label distribution {described['mean_distance']:.3f}",
        *(f"{name}: {note}" for name, note in described["notes"].items()),
    ]
    return "\n".join([*facts, "", split_picture(described)])
