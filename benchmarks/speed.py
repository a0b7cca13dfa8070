"""How close polyfed comes to a bare PyTorch loop over the same batches: paired, interleaved, fresh processes, median.

Run it as: python -m benchmarks.speed [--model cnn] [--clients 100] [--pairs 5] [--json FILE]
"""

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import polyfed
from polyfed.api import config_of
from polyfed.engine.local import cores
from polyfed.engine.work import World, federation_of
from polyfed.rng import generator


def experiment(model: str, clients: int, batch: int, rounds: int) -> dict[str, Any]:
    """FedAvg on Fashion-MNIST, everybody, one epoch; nothing is measured but training."""
    return {
        "method": "fedavg",
        "data": "fashion-mnist",
        "model": model,
        "split": {"partition": "dirichlet", "alpha": 0.5, "clients": clients, "test": "none"},
        "train": {"lr": 0.01, "batch": batch, "epochs": 1},
        "rounds": rounds,
        "eval": {"every": rounds, "classes": False},
        "checkpoint": {"every": rounds},
    }


def ours(tree: dict[str, Any]) -> float:
    """Samples per second of a run's training: sending, training, gating, averaging."""
    with tempfile.TemporaryDirectory() as folder:
        result = polyfed.run(tree, out=Path(folder) / "run")
        seconds = result["seconds.train"] + result["seconds.server"]
        return float(result.records("training")["samples"].sum()) / seconds


def bare(tree: dict[str, Any]) -> float:
    """The same batches through a hand-written loop: one process per core, one thread each, longest client first."""
    config = config_of(tree)
    federation = federation_of(config)
    sizes = sorted(((len(c.train), c.id) for c in federation.clients), reverse=True)
    shares: list[list[int]] = [[] for _ in range(cores())]
    for _, client in sizes:
        min(shares, key=lambda s: sum(len(federation.clients[k].train) for k in s)).append(client)
    context = multiprocessing.get_context("fork")
    pipes = []
    for share in shares:
        mine, theirs = context.Pipe()
        context.Process(target=_bare_loop, args=(theirs, tree, share), daemon=True).start()
        pipes.append(mine)
    for pipe in pipes:
        pipe.recv()  # everybody is ready
    started = time.perf_counter()
    for pipe in pipes:
        pipe.send("go")
    samples = sum(pipe.recv() for pipe in pipes)
    return samples / (time.perf_counter() - started)


def _bare_loop(pipe: Any, tree: dict[str, Any], clients: list[int]) -> None:
    torch.set_num_threads(1)
    config = config_of(tree)
    world = World(config)
    net = config.model.build(world.federation.shape, world.federation.classes).to(memory_format=torch.channels_last)
    start = {name: value.clone() for name, value in net.state_dict().items()}
    batches = {k: _batches(config, world, k) for k in clients}
    optimiser = torch.optim.SGD(net.parameters(), lr=config.train.lr)
    pipe.send("ready")
    pipe.recv()
    samples = 0
    for _ in range(config.rounds):
        for k in clients:
            net.load_state_dict(start)
            for x, y in batches[k]:
                optimiser.zero_grad(set_to_none=True)
                F.cross_entropy(net(x), y).backward()
                optimiser.step()
                samples += len(y)
    pipe.send(samples)


def _batches(config: Any, world: World, client: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The first round's batches of a client, prepared beforehand."""
    data = world.federation.clients[client].train
    order = torch.from_numpy(generator(config.seed, "batches", 1, client, 0, 0).permutation(len(data)))
    x, y = data.take(order)
    return list(zip(x.split(config.train.batch), y.split(config.train.batch), strict=True))


def _in_fresh_process(side: str, tree: dict[str, Any]) -> float:
    """A measurement that inherits nothing from the one before."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return float(pool.apply(_measure, (side, tree)))


def _measure(side: str, tree: dict[str, Any]) -> float:
    # a pool's worker may not have children of its own unless it is told that it is no daemon
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    return {"ours": ours, "bare": bare}[side](tree)


def main() -> None:
    """Print the ratio, its spread and the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    tree = experiment(options.model, options.clients, options.batch, options.rounds)
    pairs = []
    for i in range(options.pairs):
        sides = ("ours", "bare") if i % 2 == 0 else ("bare", "ours")  # interleaved: neither always comes first
        found = {side: _in_fresh_process(side, tree) for side in sides}
        pairs.append(found)
        print(f"pair {i + 1}: ours {found['ours']:.0f}, bare {found['bare']:.0f} samples/s", file=sys.stderr)
    ratios = [p["ours"] / p["bare"] for p in pairs]
    print(
        f"fedavg on fashion-mnist, {options.model}, {options.clients} clients, batch {options.batch}: "
        f"{statistics.median(ratios):.3f} of a bare loop "
        f"(median of {len(ratios)}, {min(ratios):.3f} to {max(ratios):.3f})"
    )
    if options.json:
        options.json.write_text(json.dumps({"experiment": tree, "pairs": pairs, "ratios": ratios}, indent=1))


if __name__ == "__main__":
    main()
