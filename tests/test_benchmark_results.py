"""Results of the benchmarks: kept per cell, never measured twice, and shown as tables with what must hold."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.__main__ import BEGIN, END, run, write_docs
from benchmarks.cells import CELLS, Cell, chosen, small
from benchmarks.measure import Failed, spread
from benchmarks.results import Result, Store
from benchmarks.table import claims, geometric, markdown

from polyfed.api import config_of

CELL = Cell("one b64 p1", "speed", {"tree": {"train": {"batch": 64}}, "rounds": 1}, repeats=2)
ENVIRONMENT = {"cpu": "a CPU", "cores": 2, "torch": "2", "python": "3", "commit": "abc"}


def silent(text: str) -> None:
    """Nobody listens."""


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else uses the machine, and that is known at once."""
    monkeypatch.setattr("benchmarks.__main__.others", lambda: 0.0)


def fake_speed(calls: list[str], of_limit: float = 0.9) -> Callable[..., Result]:
    """A measurement that takes no time."""

    def made(cell: Cell, folder: Path, rivals: Any, say: Any) -> Result:
        calls.append(cell.name)
        if cell.name == "broken":
            raise Failed("it is broken")
        numbers = {"samples": 1000, "seconds": 2.0, "memory": 2**20}
        ratios = {side: spread([of_limit, of_limit]) for side in ("limit", "pfl")}
        work = {"rounds": 1, "samples": 1000.0, "clients": 3, "of": 6}
        sides = {side: [numbers, numbers] for side in ("ours", "limit", "pfl")}
        return {"layout": "2x1 contiguous", "sides": sides, "ratios": ratios, "failed": {"flower": "x"}, "work": work}

    return made


@pytest.mark.usefixtures("idle")
def test_finished_cells_are_not_done_again(tmp_path: Path) -> None:
    """A stopped run goes on; another cell, other rivals or other code are measured anew; what failed is retried."""
    calls: list[str] = []
    cells = [CELL, replace(CELL, name="broken"), replace(CELL, name="two b64 p1")]

    def go(store: Store, some: list[Cell] = cells, again: bool = False) -> list[str]:
        before = len(calls)
        found = run(some, store, tmp_path, silent, again, {"speed": fake_speed(calls)})
        assert [r["cell"]["name"] for r in found] == [c.name for c in some if c.name != "broken"]
        return calls[before:]

    store = Store(tmp_path / "r", ["pfl"], "code")
    assert go(store, cells[:1]) == ["one b64 p1"]
    assert go(store) == ["broken", "two b64 p1"]
    assert go(store) == ["broken"]
    assert go(store, cells[:1], again=True) == ["one b64 p1"]
    assert go(store, [replace(CELL, repeats=3)]) == ["one b64 p1"]
    assert go(Store(tmp_path / "r", ["pfl"], "other code"), cells[2:]) == ["two b64 p1"]
    assert go(Store(tmp_path / "r", [], "other code"), cells[2:]) == ["two b64 p1"]
    store.path(CELL).write_text("{")
    assert go(store, cells[:1]) == ["one b64 p1"]


@pytest.mark.usefixtures("idle")
def test_table_and_claims(tmp_path: Path) -> None:
    """Ratios with their range, memory, and for every claim whether it holds."""
    store = Store(tmp_path, ["pfl"], "code")
    results = run([CELL], store, tmp_path, silent, kinds={"speed": fake_speed([], 0.9)})
    text = markdown(results, ENVIRONMENT)
    assert "| one b64 p1 | 1 x 1000 samples, 3 of 6 clients | 500 | 0.90 (0.90 to 0.90) |" in text
    assert "0.90x (0.90 to 0.90) | failed | 1 / 1 / 1 / - | 2x1 contiguous |" in text
    assert "Provisional" not in text
    assert "Not a result" not in text
    assert "Provisional: others used up to 50%" in markdown([{**results[0], "busy": 0.5}], ENVIRONMENT)
    found = {claim.text: claim.holds for claim in claims(results)}
    assert found == {
        "of the limit at batch 64, geometric mean": False,
        "of the limit at batch 64, worst cell": True,
        "times pfl, geometric mean": False,
        "times pfl, worst cell": False,
    }
    assert geometric([1.0, 4.0]) == pytest.approx(2.0)


def test_every_kind_has_a_table() -> None:
    """Results of all kinds, as the measurements write them, become rows; and they are JSON."""
    ratio = spread([2.0, 3.0])
    numbers = {"seconds": 1.0, "setup": 1.0, "round": 0.1, "memory": 2**21, "ours": 2.0, "bare": 1.0}
    made = {
        "frozen": {"sides": {s: [numbers] for s in ("cached", "uncached")}, "ratios": {"uncached": ratio}},
        "scale": {"sides": {"large": [numbers]}, "ratios": dict.fromkeys(("setup", "round", "memory"), ratio)},
        "server": {"numbers": {**numbers, "uploads": 3, "parameters": 5}, "ratios": {"bare": ratio}},
        "records": {"ratios": {"round": spread([0.002])}},
    }
    made["frozen"]["difference"] = 0.0
    results = [json.loads(json.dumps({"cell": {"name": k, "kind": k, "quick": True}, **r})) for k, r in made.items()]
    text = markdown(results, ENVIRONMENT)
    for row in ("| frozen | 1 s | 1 s | 2.50x", "| scale | 1 s | 2.50x", "| server | 3 x 5 | 2 s | 1 s", "| 0.20%"):
        assert row in text
    assert "Not a result" in text
    assert [claim.holds for claim in claims(results)] == [False, False, False, True]


def test_docs_are_written_between_their_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    for _ in range(2):
        write_docs("| new |\n", page)
        assert page.read_text() == f"before\n{BEGIN}\n\n| new |\n\n{END}\nafter\n"
    page.write_text("nothing")
    with pytest.raises(SystemExit, match="no place"):
        write_docs("x", page)


def test_cells() -> None:
    """Names are unique files; the short run is the starred cells; a quick cell says that it is none."""
    store = Store(Path(), [], "")
    assert len({store.path(cell) for cell in CELLS}) == len(CELLS)
    assert [c.name for c in chosen(False, False)] == [f"fashion-mnist {m} b64 p1" for m in ("mlp", "lenet", "cnn")]
    assert all(small(cell).quick and small(cell).repeats == 1 for cell in CELLS)
    for cell in CELLS:
        assert "tree" not in cell.work or config_of(cell.work["tree"]).method.name
