"""What is measured, as data. A cell is a piece of work that several sides do in one run."""

from dataclasses import dataclass, replace
from typing import Any, Literal

Tree = dict[str, Any]
Kind = Literal[
    "speed",
    "frozen",
    "scale",
    "writers",
    "server",
    "protection",
    "records",
    "whole",
    "comparison",
    "beside",
    "startup",
]


@dataclass(frozen=True)
class Cell:
    """One row of a table."""

    name: str
    kind: Kind
    work: Tree
    starred: bool = False  # part of the short run
    repeats: int = 3  # turns, or fresh processes
    quick: bool = False  # tiny: no result


SPLIT = {"partition": "dirichlet", "alpha": 0.5, "clients": 100, "test": "none"}
FASHION: Tree = {"data": {"name": "fashion-mnist"}, "split": SPLIT}

# so that a turn takes some seconds: {model: {(batch, participation): (rounds of a turn, turns)}}
TURNS: dict[str, dict[tuple[int, float], tuple[int, int]]] = {
    "mlp": {(64, 1.0): (1, 7), (10, 1.0): (1, 3), (64, 0.1): (5, 5), (10, 0.1): (2, 5)},
    "lenet": {(64, 1.0): (1, 5), (10, 1.0): (1, 3), (64, 0.1): (3, 5), (10, 0.1): (2, 3)},
    "cnn": {(64, 1.0): (1, 3), (10, 1.0): (1, 2), (64, 0.1): (1, 3), (10, 0.1): (1, 3)},
}


def _speed(name: str, base: Tree, setting: tuple[int, float], turns: tuple[int, int], starred: bool = False) -> Cell:
    (batch, participation), (rounds, repeats) = setting, turns
    train = {"lr": 0.01, "batch": batch, "epochs": 1}
    tree = {"method": "fedavg", **base, "train": train, "participation": participation}
    return Cell(f"{name} b{batch} p{participation:g}", "speed", {"tree": tree, "rounds": rounds}, starred, repeats)


def _frozen(method: str, phase: str, own: Tree, job: str, clients: int = 6, model: str = "cnn") -> Cell:
    tree = {"method": {"name": method, **own}, **FASHION, "model": model, "train": {"lr": 0.01, "batch": 64}}
    return Cell(f"{method} {phase}", "frozen", {"tree": tree, "job": job, "clients": clients}, repeats=2)


def _scale(method: str) -> Cell:
    tree = {"method": method, "data": FASHION["data"], "model": "lenet", "train": {"lr": 0.01, "batch": 20}}
    work = {"tree": tree, "samples": 60, "per_round": 100, "rounds": 2, "small": 200, "large": 10_000, "ram": 1 << 24}
    return Cell(f"{method} 10 000 clients", "scale", work, repeats=2)


def _server(what: str, copies: int) -> Cell:
    work = {"what": what, "uploads": 1000, "width": 1.881, "copies": copies}  # on digits, a million parameters
    return Cell(f"{what}, 1000 uploads", "server", work, repeats=1)


def _defence(name: str, most: float) -> Cell:
    work = {"defence": name, "uploads": 100, "width": 1.881, "most": most}  # on digits, a million parameters
    return Cell(f"defence {name}, 100 uploads", "protection", work, repeats=5)


def _private(name: str, model: Tree, most: float) -> Cell:
    tree = {"method": "fedavg", "data": {"name": "fashion-mnist", "limit": 300}, "model": model}
    tree |= {"split": {"clients": 10, "test": "none"}, "train": {"lr": 0.01, "batch": 32}}
    return Cell(f"dp-sgd {name}", "protection", {"tree": tree, "clients": 4, "most": most}, repeats=5)


SPEED = [
    *(
        _speed(f"fashion-mnist {model}", {**FASHION, "model": model}, setting, turns, starred=setting == (64, 1.0))
        for model, settings in TURNS.items()
        for setting, turns in settings.items()
    ),
    _speed(
        "cifar10 resnet8",
        {"data": {"name": "cifar10", "limit": 200}, "split": SPLIT, "model": {"name": "resnet8", "width": 1}},
        (64, 1.0),
        (1, 5),
    ),
    _speed("uci-har har-cnn", {"data": {"name": "uci-har"}, "split": SPLIT, "model": "har-cnn"}, (64, 1.0), (2, 5)),
]
FROZEN = [
    _frozen("fedrep", "head", {"head_epochs": 5}, "train"),
    _frozen("fedcrc", "stages 2 and 3", {"epochs": [1, 5, 5]}, "train"),
    _frozen("ecl", "phase two", {"phase2_epochs": 10}, "finish", clients=4, model="cnn5"),  # the paper's network
    _frozen("creff", "class gradients", {}, "train"),
    _frozen("mupfl", "class gradients (PKCF)", {"bavd": False}, "train"),
]
SCALE = [_scale(method) for method in ("fedavg", "fedper", "map")]
WRITERS = [Cell("femnist 3550 writers", "writers", {"few": 200, "many": 3550, "samples": 17_750})]
SERVER = [_server("average", 3), _server("acmu", 2), _server("distfl", 4)]
PROTECTION = [
    *(_defence(name, 1.0) for name in ("multi-krum", "geometric-median")),
    _private("mlp", {"name": "mlp"}, 3.0),
    _private("lenet", {"name": "lenet"}, 4.0),
    _private("resnet8-gn", {"name": "resnet8-gn", "width": 1}, 4.0),
]
RECORDS = [Cell("progress and records", "records", {**SPEED[0].work, "rounds": 4})]

# from command to table, at default settings; 300 samples of every class, so that FedAvg takes some seconds
LIMIT = 300
WHOLE: Tree = {"model": "lenet", "split": {"clients": 20}, "rounds": 10, "train": {"epochs": 2}}
SYSTEMS = ("fedper", "fedrep", "fedcrc", "map", "ecl", "ditto", "distfl", "mupfl")
SHORT = ("fedper", "mupfl", "distfl")


def _tree(workers: int | None, limit: int = LIMIT) -> Tree:
    engine = {"name": "local", "workers": workers}
    return {**WHOLE, "data": {"name": "fashion-mnist", "limit": limit}, "engine": engine}


def _whole(method: str, workers: int) -> Cell:
    name = f"whole {method}, {f'{workers} workers' if workers else 'one process'}"
    starred = not workers and method in SHORT
    return Cell(name, "whole", {"tree": {**_tree(workers), "method": method}}, starred, 2 if workers else 3)


def _ten_times(method: str) -> Cell:
    tree = {**_tree(2, 10 * LIMIT), "method": method}
    return Cell(f"whole {method}, 2 workers, ten times the data", "whole", {"tree": tree}, repeats=1)


RUNS = [
    *(_whole(method, workers) for workers in (0, 2) for method in SYSTEMS),
    *(_ten_times(method) for method in ("fedper", "map", "ditto")),
    Cell("whole comparison", "comparison", {"tree": {**_tree(None), "methods": [*SYSTEMS], "seeds": 2}}, repeats=1),
    Cell("whole fedavg beside others", "beside", {"tree": {**_tree(2), "method": "fedavg"}}, repeats=1),
    Cell("whole start", "startup", {}, repeats=7),
]
CELLS = [*SPEED, *FROZEN, *SCALE, *WRITERS, *SERVER, *PROTECTION, *RECORDS, *RUNS]


def small(cell: Cell) -> Cell:
    """The same cell at a size that takes a moment: for trying the machinery, not for numbers."""
    work = dict(cell.work)
    if "tree" in work:
        tree = work["tree"] = dict(work["tree"])
        tree["data"] = {**tree["data"], "limit": 40}
        if "split" in tree:
            tree["split"] = {**tree["split"], "clients": 20}
        if "rounds" in tree:
            tree["rounds"] = 2
    least = {"rounds": 1, "clients": 2, "per_round": 10, "small": 20, "large": 100, "uploads": 20, "width": 0.2}
    least |= {"few": 5, "many": 40, "samples": 120}
    return replace(cell, work=work | {key: value for key, value in least.items() if key in work}, repeats=1, quick=True)


def chosen(full: bool, quick: bool) -> list[Cell]:
    """The cells of a run."""
    cells = [cell for cell in CELLS if full or cell.starred]
    return [small(cell) for cell in cells] if quick else cells
