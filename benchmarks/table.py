"""Results as Markdown tables, and what they must show."""

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any

from benchmarks.claims import BUSY, Claim, claims
from benchmarks.measure import Numbers
from benchmarks.results import Result

PLACES: dict[str, tuple[str, ...]] = {  # of docs/performance.md, and the kinds of cells whose tables stand there
    "tables": ("speed", "frozen", "scale", "writers", "records"),
    "the server": ("server",),
    "protection": ("protection",),
    "whole runs": ("whole", "comparison", "beside", "startup"),
}


def markdown(results: Sequence[Result], environment: dict[str, Any]) -> str:
    """Every table for which there are results, the claims, and where the numbers come from."""
    parts = [_source(results, environment)]
    for kind, (title, head, row) in TABLES.items():
        here = [result for result in results if result["cell"]["kind"] == kind]
        if here:
            parts.append(f"### {title}\n\n{grid(head, map(row, here))}")
    found = claims(results)
    if found:
        parts.append(f"### What must hold\n\n{grid(('claim', 'needed', 'found', 'holds'), map(_claim_row, found))}")
    return "\n\n".join(parts) + "\n"


def _source(results: Sequence[Result], environment: dict[str, Any]) -> str:
    text = (
        f"{environment['cpu']}, {environment['cores']} cores; torch {environment['torch']}, "
        f"Python {environment['python']}; commit {environment['commit'] or 'unknown'}. "
        "Medians of paired, interleaved measurements in fresh processes; in brackets the least and the most."
    )
    busy = max((result.get("busy") or 0.0 for result in results), default=0.0)
    if any(result["cell"]["quick"] for result in results):
        text += "\n\n**Not a result: tiny sizes (`--quick`), for trying the machinery.**"
    if busy > BUSY:
        text += f"\n\n**Provisional: others used up to {busy:.0%} of the machine meanwhile.**"
    return text


def grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# ---- cells of a row


def spread(ratio: Numbers | None, times: str = "") -> str:
    """A ratio with its range."""
    if ratio is None:
        return "-"
    if ratio["count"] == 1:
        return f"{ratio['median']:.2f}{times}"
    return f"{ratio['median']:.2f}{times} ({ratio['least']:.2f} to {ratio['most']:.2f})"


def middle(numbers: Iterable[Numbers | None], value: Callable[[Numbers], float | None]) -> float | None:
    """The median over the measurements that succeeded."""
    found = sorted(v for v in (value(n) for n in numbers if n is not None) if v is not None)
    return found[len(found) // 2] if found else None


def megabytes(numbers: Iterable[Numbers | None]) -> str:
    """Peak memory."""
    found = middle(numbers, lambda n: n["memory"])
    return "-" if found is None else f"{found / 2**20:.0f}"


def percent(share: Numbers) -> str:
    """A share with its range."""
    if share["count"] == 1:
        return f"{share['median']:.0%}"
    return f"{share['median']:.0%} ({share['least']:.0%} to {share['most']:.0%})"


def seconds(value: float | None) -> str:
    """A time that explains a ratio; never a verdict."""
    return "-" if value is None else f"{value:.3g} s"


def _against(result: Result, rival: str) -> str:
    return "failed" if rival in result["failed"] else spread(result["ratios"].get(rival), "x")


def _speed_row(result: Result) -> list[str]:
    sides, work = result["sides"], result["work"]
    rate = middle(sides["ours"], lambda n: n["samples"] / n["seconds"]) or 0.0
    memory = " / ".join(megabytes(sides.get(side, [])) for side in ("ours", "limit", "pfl", "flower"))
    done = f"{work['rounds']} x {work['samples']:.0f} samples, {work['clients']} of {work['of']} clients"
    rivals = [_against(result, rival) for rival in ("pfl", "flower")]
    return [
        result["cell"]["name"],
        done,
        f"{rate:.0f}",
        spread(result["ratios"]["limit"]),
        *rivals,
        memory,
        result["layout"],
    ]


def _frozen_row(result: Result) -> list[str]:
    times = (seconds(middle(result["sides"][side], lambda n: n["seconds"])) for side in ("cached", "uncached"))
    return [result["cell"]["name"], *times, spread(result["ratios"]["uncached"], "x"), f"{result['difference']:.1g}"]


def _scale_row(result: Result) -> list[str]:
    ratios, large = result["ratios"], result["sides"]["large"]
    setup = seconds(middle(large, lambda n: n["setup"]))
    return [result["cell"]["name"], setup, *(spread(ratios[what], "x") for what in ("setup", "round", "memory"))]


def _server_row(result: Result) -> list[str]:
    numbers = result["numbers"]
    size = f"{numbers['uploads']} x {numbers['parameters']}"
    times = (seconds(numbers[side]) for side in ("ours", "bare"))
    return [
        result["cell"]["name"].partition(",")[0],
        size,
        *times,
        spread(result["ratios"]["bare"], "x"),
        spread(result["ratios"]["processor"], "x"),
        megabytes([numbers]),
        spread(result["ratios"]["memory"], "x"),
    ]


def _writers_row(result: Result) -> list[str]:
    many, ratios = result["sides"]["many"], result["ratios"]
    first, again = (seconds(middle(many, itemgetter(key))) for key in ("seconds", "again"))
    return [
        result["cell"]["name"],
        first,
        again,
        *(spread(ratios[what], "x") for what in ("reading", "writers", "memory")),
    ]


def _protection_row(result: Result) -> list[str]:
    numbers, ratios = result["numbers"], result["ratios"]
    times = (seconds(numbers[side]) for side in ("ours", "beside"))
    shown = (spread(ratios[name], "x") for name in ("processor", "clock"))
    return [result["cell"]["name"], numbers["size"], *times, *shown, f"{result['cell']['work']['most']:g}x"]


def _records_row(result: Result) -> list[str]:
    share = result["ratios"]["round"]
    return [result["cell"]["name"], f"{share['median']:.2%} ({share['least']:.2%} to {share['most']:.2%})"]


def _whole_row(result: Result) -> list[str]:
    work, ratios = result["cell"]["work"]["tree"], result["ratios"]
    times = (seconds(middle(result["sides"][side], lambda n: n["seconds"])) for side in (work["method"], "fedavg"))
    return [
        result["cell"]["name"].removeprefix("whole "),
        *times,
        spread(ratios["fedavg"], "x"),
        result["by"],
        spread(ratios["clock"], "x"),
        f"{result['needs']:.2f}x",
        spread(ratios["arithmetic"], "x"),
        *(percent(result["shares"][side]) for side in (work["method"], "fedavg")),
    ]


def _comparison_row(result: Result) -> list[str]:
    times = (seconds(middle(result["sides"][f"jobs={jobs}"], lambda n: n["seconds"])) for jobs in (1, "auto"))
    return [f"{result['runs']} runs", *times, spread(result["ratios"]["jobs"], "x"), "the same"]


def _beside_row(result: Result) -> list[str]:
    rivals = ("pfl", "flower", "flower example")
    ours = seconds(middle(result["sides"]["ours"], lambda n: n["seconds"]))
    return [result["cell"]["name"].removeprefix("whole "), ours, *(_against(result, rival) for rival in rivals)]


def _startup_row(result: Result) -> list[str]:
    times = (seconds(middle(result["sides"][side], lambda n: n["seconds"])) for side in ("polyfed", "torch"))
    return ["polyfed run, digits", *times, spread(result["ratios"]["torch"], "x")]


def _claim_row(claim: Claim) -> list[str]:
    sign = "at most" if claim.at_most else "at least"
    return [claim.text, f"{sign} {claim.needed:g}", f"{claim.found:.3g}", "yes" if claim.holds else "**no**"]


Table = tuple[str, tuple[str, ...], Callable[[Result], list[str]]]
TABLES: dict[str, Table] = {
    "speed": (
        "Training speed",
        (
            "cell", "work", "samples/s", "of the limit", "pfl", "Flower",
            "peak MB: polyfed / limit / pfl / Flower", "limit's layout",
        ),
        _speed_row,
    ),
    "frozen": ("Frozen parts", ("phase", "cached", "cache off", "faster", "apart"), _frozen_row),
    "scale": ("10 000 clients against 200", ("method", "set-up", "set-up", "round", "peak memory"), _scale_row),
    "writers": (
        "3550 writers against 200 with as many samples",
        ("data", "set-up from JSON", "set-up from kept arrays", "times bare reading", "times 200 writers", "memory"),
        _writers_row,
    ),
    "server": (
        "The server's arithmetic",
        (
            "what", "uploads x parameters", "polyfed", "the product alone", "cost", "by processor time",
            "peak MB", "of the uploads",
        ),
        _server_row,
    ),
    "protection": (
        "A defence beside three plain averages and one Gram product, dp-sgd beside plain training",
        ("what", "work", "polyfed", "beside", "by processor time", "by the clock", "at most"),
        _protection_row,
    ),
    "records": ("Progress and records", ("cell", "share of a round"), _records_row),
    "whole": (
        "From command to table",
        (
            "run", "seconds", "FedAvg's", "times FedAvg's", "measured by", "by the clock", "arithmetic needs",
            "times that",
            "client work", "FedAvg's client work",
        ),
        _whole_row,
    ),
    "comparison": (
        "A comparison of eight methods and two seeds",
        ("what", "one after the other", "jobs=auto", "faster", "fingerprints"),
        _comparison_row,
    ),
    "beside": (
        "FedAvg from command to end, beside others",
        ("run", "polyfed", "pfl", "Flower, tuned", "Flower as its examples"),
        _beside_row,
    ),
    "startup": ("Before the first round", ("what", "polyfed", "import torch", "ratio"), _startup_row),
}  # fmt: skip
