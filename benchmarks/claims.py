"""What the results must show."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log

from benchmarks.results import Result

BUSY = 0.1  # share of the machine that others may use before the numbers are called provisional


@dataclass(frozen=True)
class Claim:
    """A sentence with a number that is needed and the one that was found."""

    text: str
    found: float
    needed: float
    at_most: bool = False

    @property
    def holds(self) -> bool:
        """Whether the number is good enough."""
        return self.found <= self.needed if self.at_most else self.found >= self.needed


def geometric(values: Sequence[float]) -> float:
    """The geometric mean."""
    return exp(sum(map(log, values)) / len(values))


def claims(results: Sequence[Result]) -> list[Claim]:
    """What issue and README promise, as far as it was measured."""
    made: list[Claim] = []
    speed = [r for r in results if r["cell"]["kind"] == "speed"]
    for batch, mean, least in ((64, 0.95, 0.85), (10, 0.85, 0.75)):
        of_limit = _medians([r for r in speed if r["cell"]["work"]["tree"]["train"]["batch"] == batch], "limit")
        if of_limit:
            made.append(Claim(f"of the limit at batch {batch}, geometric mean", geometric(of_limit), mean))
            made.append(Claim(f"of the limit at batch {batch}, worst cell", min(of_limit), least))
    pfl = _medians(speed, "pfl")
    if pfl:
        made.append(Claim("times pfl, geometric mean", geometric(pfl), 1.2))
        made.append(Claim("times pfl, worst cell", min(pfl), 0.95))
    for model, needed in (("mlp", 10.0), ("cnn", 3.0)):
        flower = _medians([r for r in speed if r["cell"]["name"] == f"fashion-mnist {model} b64 p1"], "flower")
        if flower:
            made.append(Claim(f"times Flower's simulation with {model}", flower[0], needed))
    made += _worst(results, "frozen", "uncached", "frozen phases, times the cache off, worst", 3.0, False)
    made += _worst(results, "scale", "round", "a round with 10 000 clients, times one with 200, worst", 1.2, True)
    made += _worst(results, "scale", "memory", "memory with 10 000 clients, times that with 200, worst", 1.2, True)
    made += _worst(results, "writers", "memory", "memory with 3550 writers, times that with 200", 1.2, True)
    acmu = [r for r in results if r["cell"]["kind"] == "server" and r["cell"]["work"]["what"] == "acmu"]
    made += _worst(acmu, "server", "bare", "ACMU on 1000 uploads, times the bare product", 1.3, True)
    made += _worst(acmu, "server", "memory", "ACMU's memory, times that of the uploads", 1.5, True)
    for result in (r for r in results if r["cell"]["kind"] == "protection"):
        name, most = result["cell"]["name"], result["cell"]["work"]["most"]
        made += _worst([result], "protection", "processor", f"{name}, times what it is set against", most, True)
    made += _worst(results, "records", "round", "progress and records, share of a round", 0.01, True)
    made += _whole_claims([r for r in results if r["cell"]["kind"] == "whole"])
    made += _worst(results, "comparison", "jobs", "a comparison with jobs=auto, times as fast", 1.25, False)
    made += _worst(results, "startup", "torch", "start-up before the first round, times import torch", 1.5, True)
    return made


MOST = {  # times FedAvg's whole run
    "fedper": 1.3, "fedrep": 1.3, "fedcrc": 1.3, "map": 1.3, "ecl": 1.5, "ditto": 2.1, "distfl": 2.0, "mupfl": 2.0,
}  # fmt: skip
TRAINERS = ("fedavg", "fedper", "map", "ditto")  # whose wall clock must be their clients'


def _whole_claims(results: Sequence[Result]) -> list[Claim]:
    """Ratios to FedAvg's run, and shares of client work, at the cells' data and at ten times as much."""
    made: list[Claim] = []
    usual, large = ([r for r in results if ("ten times" in r["cell"]["name"]) is more] for more in (False, True))
    for method, most in MOST.items():
        of_method = [_waited(r) for r in usual if r["cell"]["work"]["tree"]["method"] == method]
        if of_method:
            made.append(Claim(f"{method}, times FedAvg's whole run, worst", max(of_method), most, True))
    for some, least, where in ((usual, 0.7, ""), (large, 0.85, " at ten times the data")):
        for method in TRAINERS:
            shares = [r["shares"][method]["median"] for r in some if method in r["shares"]]
            if shares:
                made.append(Claim(f"{method}, share of client work{where}, worst", min(shares), least))
    return made


def _waited(result: Result) -> float:
    """A whole run's ratio to FedAvg's: by the clock where nobody else used the machine, for that is what people wait.

    Processor time, which a busy machine stretches less, counts the seconds of all cores.
    """
    busy = result.get("busy")
    return float(result["ratios"]["clock" if busy is not None and busy <= BUSY else "fedavg"]["median"])


def _medians(results: Sequence[Result], ratio: str) -> list[float]:
    return [r["ratios"][ratio]["median"] for r in results if r["ratios"].get(ratio)]


def _worst(results: Sequence[Result], kind: str, ratio: str, text: str, needed: float, at_most: bool) -> list[Claim]:
    found = _medians([r for r in results if r["cell"]["kind"] == kind], ratio)
    return [Claim(text, max(found) if at_most else min(found), needed, at_most)] if found else []
