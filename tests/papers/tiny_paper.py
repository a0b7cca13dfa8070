"""Small recipes and stores that are written by hand, and the tables and figures that there are to be."""

from pathlib import Path

from polyfed.papers.cell import PaperCell
from polyfed.papers.recipe import Item, find_items
from polyfed.papers.sources import sources_of
from polyfed.papers.store import Store, StoredCell

TABLES = {"mupfl": range(1, 7), "fedcrc": range(1, 4), "map": range(1, 4), "ecl": range(1, 5), "distfl": range(2, 8)}
FIGURES = {
    "mupfl": ("3b", "4", "6a", "6b", "7", "8", "9", "10"),
    "fedcrc": ("1", "3"),
    "map": ("5", "6", "7", "8", "9", "10", "11", "12"),
    "ecl": ("2",),
    "distfl": ("3", "4", "5", "6", "7", "8"),
}
EXPECTED = [f"{paper}.table{number}" for paper, numbers in TABLES.items() for number in numbers]
EXPECTED += [f"{paper}.figure{number}" for paper, numbers in FIGURES.items() for number in numbers]

TINY = """
table1:
  title: "Two methods on digits"
  place: "Table 1"
  note: "A reading."
  keys:
    data: {name: digits, limit: 12}
    model: {name: mlp, width: 0.05}
    split: {clients: 3, alpha: 1.0}
    engine: {workers: 0}
    eval: {classes: false}
  scales:
    cpu: {seeds: 2, note: "three rounds", keys: {rounds: 3}}
    paper: {seeds: 1, keys: {rounds: 4}}
  panels: {"alpha 1": {}, "alpha 9": {keys: {split.alpha: 9.0}}}
  columns: {GA: global.accuracy, PA: personal.accuracy}
  rows:
    FedAvg: {keys: {method: fedavg}}
    "FedAvg, tuned": {keys: {method: fedavg-ft}, control: true, panels: ["alpha 1"]}
    FedPer: {keys: {method: fedper}, reads: {GA: personal.accuracy}}
  printed: {"alpha 1": {FedAvg: [30.5, null]}}
  claims:
    - {says: "FedPer is best", better: FedPer, than: [FedAvg], column: PA, expected: F}
    - {says: "FedAvg likes large alpha", row: FedAvg, better_panel: "alpha 9", than_panel: "alpha 1"}
  findings: {"FedPer is best": "Nothing was tried."}
  misprints: ["A digit is wrong."]
  figure: {kind: curves, y: PA}
table2:
  title: "The same runs once more"
  place: "Table 2"
  keys:
    data: {name: digits, limit: 12}
    model: {name: mlp, width: 0.05}
    split: {clients: 3, alpha: 1.0}
    engine: {workers: 0}
    eval: {classes: false}
    rounds: 3
  scales: {cpu: {seeds: 2}}
  columns: {PA_sel: personal_selected.accuracy}
  rows: {"Federated averaging": {keys: {method: fedavg}}}
figure1:
  title: "A long tail"
  place: "Figure 1"
  demo: tail
  scales: {cpu: {seeds: 1}}
  panels: {"IF 10": {keys: {factor: 10.0}}, "IF 100": {keys: {factor: 100.0}}}
  claims:
    - {says: "fewer samples", row: all, better_panel: "IF 100", than_panel: "IF 10", column: samples, lower: true}
"""


def room(folder: Path, text: str = TINY) -> Path:
    """A folder of recipes with one paper, `tiny`."""
    folder.mkdir(exist_ok=True)
    (folder / "tiny.yaml").write_text(text)
    return folder


def item(folder: Path, name: str = "table1") -> Item:
    """One of its items."""
    return find_items([f"tiny.{name}"], folder)[0]


def stored(cell: PaperCell, third: float, end: float, path: str = "personal.accuracy", **others: object) -> StoredCell:
    """A finished cell with one number."""
    given = {
        "item": cell.item.id,
        "scale": cell.scale,
        "panel": cell.panel,
        "row": cell.row,
        "seed": cell.seed,
        "identity": cell.identity,
        "sources": sources_of(cell),
        "fingerprint": "f" * 64,
        "final": {path: end},
        "third": {path: third},
        "evaluations": {"round": [2.0, 3.0], path: [third, end]},
        "versions": {"polyfed": "0", "torch": "0", "python": "0"},
        "cpu": "hand",
        "minutes": 2.0,
    }
    return StoredCell.model_validate({**given, **others})


def fill(store: Store, cells: list[PaperCell], numbers: dict[tuple[str, str, int], tuple[float, float]]) -> None:
    """Put numbers (last third, end) at places (panel, row, seed)."""
    for cell in cells:
        if (cell.panel, cell.row, cell.seed) in numbers:
            store.put(cell, stored(cell, *numbers[cell.panel, cell.row, cell.seed]))
