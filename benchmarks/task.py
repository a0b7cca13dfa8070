"""A cell's work as files that any environment can read: arrays, who holds which rows, and the settings."""

import hashlib
import itertools
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

Tree = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """What every side trains: `selected[0]` is the warm-up round, the others are measured in turns."""

    config: Tree  # polyfed's own description of the same experiment
    arrays: str  # an .npz: x, y in client order and the order of the first round's batches, offsets; the same of tests
    model: str
    shape: tuple[int, ...]
    classes: int
    batch: int
    epochs: int
    lr: float
    participation: float
    selected: list[list[int]]
    per_turn: int  # rounds

    def save(self, path: Path) -> None:
        """Write it down."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @staticmethod
    def load(path: str | Path) -> "Task":
        """Read it in any environment."""
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        return Task(**{**found, "shape": tuple(found["shape"])})

    def clients(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Every client's inputs and labels, in the order of its batches."""
        with np.load(self.arrays, allow_pickle=False) as file:
            x, y, offsets = file["x"], file["y"], file["offsets"]
        return [(x[a:b], y[a:b]) for a, b in itertools.pairwise(offsets)]

    def tests(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Every client's test samples; nothing where the experiment has none."""
        with np.load(self.arrays, allow_pickle=False) as file:
            x, y, offsets = file["test_x"], file["test_y"], file["test_offsets"]
        return [(x[a:b], y[a:b]) for a, b in itertools.pairwise(offsets)]

    def turn(self, number: int) -> list[list[int]]:
        """Who is selected in the rounds of a turn; turns are counted from 1."""
        return self.selected[1 + (number - 1) * self.per_turn : 1 + number * self.per_turn]

    def samples(self, number: int) -> int:
        """How many samples a turn has."""
        sizes = self.sizes()
        return self.epochs * sum(sizes[k] for chosen in self.turn(number) for k in chosen)

    def sizes(self) -> list[int]:
        """How many samples every client has."""
        with np.load(self.arrays, allow_pickle=False) as file:
            return np.diff(file["offsets"]).tolist()


def write_task(tree: Tree, rounds: int, turns: int, folder: Path) -> Path:
    """A polyfed experiment as a task: one warm-up round, then turns of so many rounds."""
    from polyfed.api import config_of
    from polyfed.engine.work import federation_of

    config = config_of(tree)
    federation = federation_of(config)
    task = Task(
        config=tree,
        arrays=str(_write_arrays(config, federation, folder)),
        model=config.model.name,
        shape=federation.shape,
        classes=federation.classes,
        batch=config.train.batch,
        epochs=int(config.train.epochs),
        lr=config.train.lr,
        participation=config.participation,
        selected=[_selected(config, len(federation.clients), number) for number in range(1, rounds * turns + 2)],
        per_turn=rounds,
    )
    path = folder / f"{hashlib.sha256(json.dumps(asdict(task)).encode()).hexdigest()[:16]}.json"
    task.save(path)
    return path


def _selected(config: Any, clients: int, number: int) -> list[int]:
    """Whom polyfed selects in a round; `ours` fails if it trained anything else."""
    from polyfed.rng import generator

    count = max(1, round(config.participation * clients))
    draw = generator(config.seed, "select", number, 0)
    return sorted(int(k) for k in draw.choice(list(range(clients)), size=count, replace=False))


def _write_arrays(config: Any, federation: Any, folder: Path) -> Path:
    """Prepared samples, client by client, in the order of the first round's batches; written once for all cells."""
    import torch

    from polyfed.rng import generator

    parts = [config.data.dump(), config.dump()["split"], config.seed, federation.shape, "with tests"]
    described = json.dumps(parts, default=str)
    path = folder / f"arrays-{hashlib.sha256(described.encode()).hexdigest()[:16]}.npz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        taken = []
        for client in federation.clients:
            order = generator(config.seed, "batches", 1, client.id, 0, 0).permutation(len(client.train))
            taken.append(client.train.take(torch.from_numpy(order)))
        tests = [client.test.take(torch.arange(len(client.test))) for client in federation.clients]
        aside = path.with_suffix(".tmp.npz")
        np.savez(aside, **_joined(taken, ""), **_joined(tests, "test_"))  # type: ignore[arg-type]
        aside.rename(path)
    return path


def _joined(taken: list[tuple[Any, Any]], prefix: str) -> dict[str, np.ndarray]:
    """The samples of all clients one after the other, and where each client's begin."""
    return {
        f"{prefix}x": np.concatenate([np.ascontiguousarray(inputs.numpy()) for inputs, _ in taken]),
        f"{prefix}y": np.concatenate([labels.numpy() for _, labels in taken]),
        f"{prefix}offsets": np.cumsum([0, *(len(labels) for _, labels in taken)]),
    }


def main() -> None:
    """python -m benchmarks.task TREE ROUNDS TURNS FOLDER: prints where the task lies."""
    from polyfed.errors import PolyfedError

    tree, rounds, turns, folder = sys.argv[1:]
    try:
        print(json.dumps({"task": str(write_task(json.loads(tree), int(rounds), int(turns), Path(folder).resolve()))}))
    except PolyfedError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
