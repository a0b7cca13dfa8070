"""The limit: a bare hand-written PyTorch loop over batches that lie ready in memory; nothing is sent, merged or kept.

It runs as several processes with one thread or as one with several, with convolutions in either memory format:
`--calibrate` finds which is fastest for a task. A round is over when its slowest process is.
"""

import argparse
import itertools
import json
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from benchmarks.layout import Layout, layouts
from benchmarks.nets import build, formatted
from benchmarks.task import Task
from benchmarks.turns import my_turn

Rows = list[tuple[np.ndarray, np.ndarray]]
CALIBRATION = 1.0  # seconds for each layout, twice


def batches_of(
    rows: tuple[np.ndarray, np.ndarray], size: int, channels_last: bool, normed: bool
) -> list[tuple[Tensor, Tensor]]:
    """A client's batches; BatchNorm learns nothing from a lone sample, so polyfed leaves such a batch out."""
    x, y = (torch.from_numpy(part) for part in rows)
    batches = zip(formatted(x, channels_last).split(size), y.split(size), strict=True)
    return [batch for batch in batches if len(batch[1]) > 1 or len(y) == 1 or not normed]


class Loop:
    """One process's bare loop: a model, where it starts, and its clients' batches."""

    def __init__(self, task: Task, rows: Rows, mine: set[int], layout: Layout):
        torch.set_num_threads(layout.threads)
        torch.manual_seed(0)
        self.net = build(task.model, task.shape, task.classes, layout.channels_last)
        self.weights: list[Tensor] = list(self.net.parameters())
        self.start = [w.detach().clone() for w in self.weights]
        self.lr, self.epochs = task.lr, task.epochs
        normed = any(isinstance(module, _BatchNorm) for module in self.net.modules())
        self.batches = {k: batches_of(rows[k], task.batch, layout.channels_last, normed) for k in mine}

    def step(self, x: Tensor, y: Tensor) -> None:
        """One batch."""
        slopes = torch.autograd.grad(F.cross_entropy(self.net(x), y), self.weights)
        with torch.no_grad():
            torch._foreach_add_(self.weights, slopes, alpha=-self.lr)

    def train(self, client: int) -> int:
        """A client's epochs from the common start; how many samples that were."""
        with torch.no_grad():
            torch._foreach_copy_(self.weights, self.start)
        for _ in range(self.epochs):
            for x, y in self.batches[client]:
                self.step(x, y)
        return self.epochs * sum(len(y) for _, y in self.batches[client])


Share = list[list[int]]  # a process's clients, round by round


def packed(clients: list[int], sizes: list[int], processes: int) -> list[list[int]]:
    """Longest first, each to the process with least to do."""
    shares: list[list[int]] = [[] for _ in range(processes)]
    for client in sorted(clients, key=lambda k: -sizes[k]):
        min(shares, key=lambda share: sum(sizes[k] for k in share)).append(client)
    return shares


def turns(task: Task, layout: Layout) -> None:
    """A turn whenever it is asked for."""
    team = Team(task, layout, sorted({k for chosen in task.selected for k in chosen}))
    took: dict[str, float] = {}
    for number in itertools.count(1):
        if not my_turn(took):
            return
        took = turn(team, task, number)


def turn(team: "Team", task: Task, number: int) -> dict[str, float]:
    """The rounds of a turn; each is over when its slowest process is."""
    shares = [packed(chosen, task.sizes(), team.size) for chosen in task.turn(number)]
    samples, seconds, cpu = zip(*team.do(_rounds, [[r[i] for r in shares] for i in range(team.size)]), strict=True)
    return {"samples": sum(samples), "seconds": float(np.max(seconds, axis=0).sum()), "cpu": sum(cpu)}


def _rounds(loop: Loop, mine: Share) -> tuple[int, list[float], float]:
    """Samples, seconds by round, and seconds this process computed."""
    samples, seconds, before = 0, [], time.process_time()
    for clients in mine:
        started = time.perf_counter()
        samples += sum(loop.train(client) for client in clients)
        seconds.append(time.perf_counter() - started)
    return samples, seconds, time.process_time() - before


def calibrated(task: Task) -> dict[str, float]:
    """Samples per second of every layout in a moment of work, the better of two, and none always first."""
    ways = layouts(channels=len(task.shape) in (2, 3))
    rates: dict[str, float] = {}
    for layout in [*ways, *reversed(ways)]:
        shares = packed(task.selected[0], task.sizes(), layout.processes)
        team = Team(task, layout, task.selected[0])
        rate = sum(team.do(_moment, [[share] for share in shares]))
        team.end()
        rates[str(layout)] = max(rates.get(str(layout), 0.0), rate)
    return rates


def _moment(loop: Loop, mine: Share) -> float:
    """Samples per second for a short while."""
    samples, started = 0, time.perf_counter()
    for x, y in itertools.cycle([batch for client in mine[0] for batch in loop.batches[client]]):
        loop.step(x, y)
        samples += len(y)
        spent = time.perf_counter() - started
        if spent > CALIBRATION:
            break
    return samples / spent if samples else 0.0


class Team:
    """The processes of the limit, ready with the batches of some clients."""

    def __init__(self, task: Task, layout: Layout, clients: list[int]):
        self.size = layout.processes
        context = multiprocessing.get_context("fork")  # rows are read once and shared; this process computes nothing
        rows = task.clients()
        self.pipes, self.children = [], []
        for _ in range(self.size):
            mine, theirs = context.Pipe()
            child = context.Process(target=_serve, args=(theirs, task, layout, rows, set(clients)), daemon=True)
            child.start()
            theirs.close()  # so that a child's death is heard
            self.pipes.append(mine)
            self.children.append(child)
        for pipe in self.pipes:
            pipe.recv()

    def do(self, work: Callable[[Loop, Share], Any], shares: list[Share]) -> list[Any]:
        """The same work in every process on its share, begun together; what each says."""
        for pipe, share in zip(self.pipes, shares, strict=True):
            pipe.send((work, share))
        return [pipe.recv() for pipe in self.pipes]

    def end(self) -> None:
        """End the processes."""
        for child in self.children:
            child.kill()
            child.join()


def _serve(pipe: Connection, task: Task, layout: Layout, rows: Rows, mine: set[int]) -> None:
    loop = Loop(task, rows, mine, layout)
    for batches in [*loop.batches.values()][:1]:
        loop.step(*batches[0])  # warm
    pipe.send("ready")
    while True:
        work, share = pipe.recv()
        pipe.send(work(loop, share))


def main() -> None:
    """Take turns, or print a JSON line with the speed of every layout."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task")
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--layout", type=Layout.parse)
    choice.add_argument("--calibrate", action="store_true")
    options = parser.parse_args()
    task = Task.load(options.task)
    if options.calibrate:
        print(json.dumps(calibrated(task)))
    else:
        turns(task, options.layout)


if __name__ == "__main__":
    main()
