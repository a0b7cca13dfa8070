"""The arithmetic a whole run of a method needs, as a multiple of FedAvg's.

The unit is a sample's forward pass through the whole network; a step costs three of them, and one of the head alone
its share. What a frozen part gives is needed once. Evaluation, averages and the matching of features are not counted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.measure import answer

STEP = 3.0  # forward, and backward for the inputs and for the weights


@dataclass(frozen=True)
class Task:
    """How much there is to do."""

    rounds: int
    epochs: float
    counts: Sequence[Sequence[int]]  # training samples of every client by class; all take part in every round
    last: float  # share of a forward pass
    head: float
    clusterings: int = 0

    @property
    def samples(self) -> int:
        """The training samples of all clients."""
        return sum(map(sum, self.counts))

    @property
    def clients(self) -> int:
        """How many there are."""
        return len(self.counts)

    @property
    def classes(self) -> int:
        """How many there are."""
        return len(self.counts[0])


def fedavg(task: Task, method: Any = None) -> float:
    """E epochs of every client in every round; FedPer's too."""
    return task.rounds * task.samples * STEP * task.epochs


def fedrep(task: Task, method: Any) -> float:
    """Features once, epochs of the head on them, epochs of the body."""
    head = method.head_epochs or max(task.epochs - 1, 1)
    return task.rounds * task.samples * (1 + STEP * (task.head * head + method.body_epochs))


def fedcrc(task: Task, method: Any) -> float:
    """Stage one as FedAvg; for stages two and three one pass for features, and epochs of heads."""
    one, two, three = method.epochs or (task.epochs,) * 3
    return task.rounds * task.samples * (STEP * one + 1 + STEP * task.head * (two + three))


def map_(task: Task, method: Any) -> float:
    """The steps of FedAvg in two stages; in the second a teacher answers, once for every sample."""
    return fedavg(task) + task.rounds * task.samples * min((1 - method.split) * task.epochs, 1.0)


def ditto(task: Task, method: Any) -> float:
    """Two models."""
    return task.rounds * task.samples * STEP * (task.epochs + (method.personal_epochs or task.epochs))


def ecl(task: Task, method: Any) -> float:
    """FedAvg; then once on every client features, a head, and experts of which only the tail's is no more than one."""
    import torch

    from polyfed.parts.experts import frequency_groups

    trained = task.samples * task.head
    for counts in task.counts:
        groups = frequency_groups(torch.tensor(counts), method.experts)
        rows = [sum(counts[c] for c in group) for group in groups]
        trained += sum(rows) * task.head + sum(rows[:-1]) * task.last
    return fedavg(task) + task.samples + STEP * method.phase2_epochs * trained


def distfl(task: Task, method: Any) -> float:
    """FedAvg; for each clustering the steps on z inputs, everybody's answers to them, and statistics of the data."""
    each = method.z * (method.steps * STEP + task.clients) + task.samples
    return fedavg(task) + task.clusterings * each


def mupfl(task: Task, method: Any) -> float:
    """FedAvg; class gradients from one pass, tuned heads from the second round on; at last both once more."""
    held = [(sum(counts), sum(n > 0 for n in counts)) for counts in task.counts]
    gradients = sum(min(n, method.draws * method.b_real * classes) for n, classes in held)
    tuning = task.clients * method.tau * STEP * task.head * method.m * task.classes
    return fedavg(task) * (1 + 1 / task.rounds) + task.rounds * (gradients + tuning)


METHODS: dict[str, Callable[[Task, Any], float]] = {
    "fedavg": fedavg,
    "fedper": fedavg,
    "fedrep": fedrep,
    "fedcrc": fedcrc,
    "map": map_,
    "ditto": ditto,
    "ecl": ecl,
    "distfl": distfl,
    "mupfl": mupfl,
}


def work(given: dict[str, Any]) -> dict[str, float]:
    """What the method of an experiment needs, times FedAvg."""
    from polyfed.api import config_of
    from polyfed.engine.work import federation_of

    config = config_of(given["tree"])
    federation = federation_of(config)
    last, head = shares(config.model.build(federation.shape, federation.classes), federation.shape)
    counts = [client.train.y.bincount(minlength=federation.classes).tolist() for client in federation.clients]
    task = Task(config.rounds, config.train.epochs, counts, last, head, given["clusterings"])
    return {"needs": METHODS[config.method.name](task, config.method) / fedavg(task)}


def shares(net: Any, shape: Sequence[int]) -> tuple[float, float]:
    """The parts of a forward pass that `last` and `head` are, by their multiplications."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    rows, found = torch.zeros(2, *shape), []
    with torch.no_grad():
        for part in (net.eval().trunk, net.last, net.head):
            with FlopCounterMode(display=False) as counter:
                rows = part(rows)
            found.append(counter.get_total_flops())
    return found[1] / sum(found), found[2] / sum(found)


if __name__ == "__main__":
    answer(work)
