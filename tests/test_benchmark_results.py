"""Results of the benchmarks: kept per cell, never measured twice, and shown as tables with what must hold."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.__main__ import KINDS, call, main, markers, run, write_docs
from benchmarks.cells import CELLS, SHORT, Cell, chosen, small
from benchmarks.claims import claims, geometric
from benchmarks.data import Shelf, name_of
from benchmarks.measure import Failed, spread
from benchmarks.results import Result, Store
from benchmarks.table import PLACES, TABLES, markdown

from polyfed.api import config_of

CELL = Cell("one b64 p1", "speed", {"tree": {"data": "digits", "train": {"batch": 64}}, "rounds": 1}, repeats=2)
ENVIRONMENT = {"cpu": "a CPU", "cores": 2, "torch": "2", "python": "3", "commit": "abc"}


def silent(text: str) -> None:
    """Nobody listens."""


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else uses the machine, and that is known at once; nothing has to be compiled."""
    monkeypatch.setattr("benchmarks.__main__.others", lambda: 0.0)
    monkeypatch.setattr("benchmarks.__main__.compile_all", lambda: None)


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
        "server": {
            "numbers": {**numbers, "uploads": 3, "parameters": 5},
            "ratios": dict.fromkeys(("bare", "processor", "memory"), ratio),
        },
        "writers": {
            "sides": {"many": [{**numbers, "again": 0.5}]},
            "ratios": dict.fromkeys(("reading", "writers", "memory"), ratio),
        },
        "protection": {
            "numbers": {**numbers, "beside": 1.0, "size": "3 x 5"},
            "ratios": dict.fromkeys(("processor", "clock"), ratio),
        },
        "records": {"ratios": {"round": spread([0.002])}},
        "comparison": {"sides": {"jobs=1": [numbers], "jobs=auto": [numbers]}, "ratios": {"jobs": ratio}, "runs": 16},
        "beside": {"sides": {"ours": [numbers]}, "ratios": {"flower": ratio}, "failed": {"pfl": "no network"}},
        "startup": {"sides": {"polyfed": [numbers], "torch": [numbers]}, "ratios": {"torch": ratio}},
    }
    made["frozen"]["difference"] = 0.0
    cells = {kind: {"name": kind, "kind": kind, "quick": True, "work": {"what": "acmu", "most": 3.0}} for kind in made}
    results = [json.loads(json.dumps({"cell": cells[kind], **result})) for kind, result in made.items()]
    text = markdown(results, ENVIRONMENT)
    for row in ("| frozen | 1 s | 1 s | 2.50x", "| scale | 1 s | 2.50x", "| server | 3 x 5 | 2 s | 1 s", "| 0.20%"):
        assert row in text
    assert "| writers | 1 s | 0.5 s | 2.50x (2.00 to 3.00) |" in text
    assert "| 16 runs | 1 s | 1 s | 2.50x (2.00 to 3.00) | the same |" in text
    assert "| beside | 1 s | failed | 2.50x (2.00 to 3.00) | - |" in text
    assert "| polyfed run, digits | 1 s | 1 s | 2.50x (2.00 to 3.00) |" in text
    assert "Not a result" in text
    assert "| protection | 3 x 5 | 2 s | 1 s | 2.50x (2.00 to 3.00) | 2.50x (2.00 to 3.00) | 3x |" in text
    assert [claim.holds for claim in claims(results)] == [*[False] * 6, True, True, True, False]
    assert {kind for kinds in PLACES.values() for kind in kinds} == set(TABLES) == {cell.kind for cell in CELLS}


def whole_result(method: str, name: str, times: float, share: float) -> Result:
    """What a whole run is kept as."""
    runs = [{"seconds": 2.0 * times}, {"seconds": 2.0 * times}]
    return {
        "cell": {
            "name": f"whole {method}, {name}",
            "kind": "whole",
            "quick": False,
            "work": {"tree": {"method": method}},
        },
        "sides": {"fedavg": [{"seconds": 2.0}], method: runs},
        "by": "processor",
        "ratios": {
            "fedavg": spread([times, times]),
            "clock": spread([times, times + 1]),
            "arithmetic": spread([times / 2, times / 2]),
        },
        "needs": 2.0,
        "shares": {"fedavg": spread([0.8]), method: spread([share, share])},
    }


def test_whole_runs_have_a_table_and_claims() -> None:
    """The worse of two cells counts; ten times the data has a claim of its own, and only about shares."""
    results = [
        whole_result("ditto", "one process", 2.0, 0.9),
        whole_result("ditto", "2 workers", 2.2, 0.75),
        whole_result("ditto", "2 workers, ten times the data", 1.9, 0.84),
        whole_result("mupfl", "one process", 1.5, 0.3),
    ]
    text = markdown(results, ENVIRONMENT)
    assert "| ditto, one process | 4 s | 2 s | 2.00x (2.00 to 2.00) | processor | 2.50x (2.00 to 3.00) |" in text
    assert "| 2.00x | 1.00x (1.00 to 1.00) | 90% (90% to 90%) | 80% |" in text
    assert {claim.text: (claim.found, claim.holds) for claim in claims(results)} == {
        "ditto, times FedAvg's whole run, worst": (2.2, False),
        "mupfl, times FedAvg's whole run, worst": (1.5, True),
        "fedavg, share of client work, worst": (0.8, True),
        "ditto, share of client work, worst": (0.75, True),
        "fedavg, share of client work at ten times the data, worst": (0.8, False),
        "ditto, share of client work at ten times the data, worst": (0.84, False),
    }


@pytest.mark.parametrize(("busy", "found"), [(0.02, 1.8), (0.3, 2.2), (None, 2.2)])
def test_on_a_quiet_machine_the_clock_decides(busy: float | None, found: float) -> None:
    result = {**whole_result("distfl", "one process", 2.2, 0.9), "busy": busy}
    result["ratios"]["clock"] = spread([1.8])
    (claim,) = [one for one in claims([result]) if one.text.startswith("distfl, times")]
    assert (claim.found, claim.holds) == (found, found < 2)


def test_docs_are_written_between_their_markers(tmp_path: Path) -> None:
    """Each table stands in its place; a place for which nothing was measured keeps what it has."""
    page = tmp_path / "page.md"
    rounds, runs = markers("tables"), markers("whole runs")
    page.write_text(
        "\n".join(["before", rounds[0], "old rounds", rounds[1], "middle", runs[0], "old", runs[1], "after"])
    )
    result = whole_result("ditto", "one process", 2.0, 0.9)
    for _ in range(2):
        write_docs([result], page)
        text = page.read_text()
        assert text.startswith(f"before\n{rounds[0]}\nold rounds\n{rounds[1]}\nmiddle\n{runs[0]}\n\n")
        assert text.endswith(f"|\n\n{runs[1]}\nafter")
        assert text.count("| ditto, one process |") == 1
    page.write_text("nothing")
    with pytest.raises(Failed, match="no place for whole runs"):
        write_docs([result], page)


def test_the_page_has_all_places() -> None:
    text = (Path(__file__).parents[1] / "docs" / "performance.md").read_text(encoding="utf-8")
    assert all(text.count(marker) == 1 for place in PLACES for marker in markers(place))


# ---- a machine on which something is missing


def offline(side: Any) -> None:
    """Nothing can be fetched."""
    raise Failed("polyfed: fashion-mnist: no network; put the four idx files into a folder")


@pytest.mark.usefixtures("idle")
def test_data_are_fetched_once_and_cells_without_are_left_out(tmp_path: Path) -> None:
    cells = [replace(CELL, name=name, work={"tree": {"data": {"name": "fashion-mnist"}}}) for name in ("a", "b")]
    asked: list[list[str]] = []
    said: list[str] = []
    store = Store(tmp_path, [], "code")

    def fetched(side: Any) -> None:
        asked.append(side.command[-4:])

    found = run([*cells, CELL], store, tmp_path, said.append, False, {"speed": fake_speed([])}, Shelf(offline))
    assert [r["cell"]["name"] for r in found] == [CELL.name]
    assert sum(text.startswith("left out: polyfed: fashion-mnist: no network") for text in said) == 2
    found = run([*cells, CELL], store, tmp_path, silent, False, {"speed": fake_speed([])}, Shelf(fetched))
    assert len(found) == 3
    assert asked == [["data", "get", "fashion-mnist", "--quiet"]]
    assert [name_of(cell) for cell in (CELL, cells[0], replace(CELL, work={"what": "acmu"}))] == [
        "digits",
        "fashion-mnist",
        "digits",
    ]


@pytest.mark.usefixtures("idle")
def test_nothing_measured_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever is missing, the command says so in a sentence: no data, no build folder, no room for one, no system."""
    monkeypatch.setattr("benchmarks.data.Shelf._complaint", lambda shelf, name, say: "no network")
    monkeypatch.setattr("signal.signal", lambda *given: None)  # a test leaves no handlers behind

    def last(*arguments: str) -> str:
        monkeypatch.setattr("sys.argv", ["benchmarks", *arguments])
        with pytest.raises(SystemExit) as stop:
            call()
        return str(stop.value)

    out = str(tmp_path / "none" / "yet")
    assert last("--again", "--out", out).startswith("benchmarks: nothing is measured")
    assert capsys.readouterr().err.count("left out: no network") == len(chosen(False, False))
    assert "leave out --write-docs first" in last("--write-docs", "--out", out)
    assert last("--rivals", "ray") == "2"
    assert "no rival is called 'ray'" in capsys.readouterr().err
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setattr("benchmarks.data.Shelf._complaint", lambda shelf, name, say: "")
    monkeypatch.setitem(KINDS, "speed", fake_speed([]))
    assert "Not a directory" in last("--only", "*mlp*", "--out", str(file))
    monkeypatch.setitem(KINDS, "speed", lambda *given: {}["a fault of ours"])
    assert "a fault: KeyError: 'a fault of ours'; POLYFED_DEBUG=1" in last("--only", "*mlp*", "--out", out)
    monkeypatch.delattr("os.fork")
    assert "Linux or macOS" in last("--out", out)


@pytest.mark.usefixtures("idle")
def test_the_command_keeps_table_and_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a machine without git and without a build folder."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("benchmarks.data.Shelf._complaint", lambda shelf, name, say: "")
    monkeypatch.setitem(KINDS, "speed", fake_speed([]))
    compiled: list[bool] = []
    monkeypatch.setattr("benchmarks.__main__.compile_all", lambda: compiled.append(True))
    main(["--only", "*mlp*", "--out", str(tmp_path / "build" / "bench")])
    assert compiled == [True], "what starts has its bytecode, as after an installation"
    assert "commit unknown" in capsys.readouterr().out
    assert "mlp b64 p1" in (tmp_path / "build" / "bench" / "short" / "table.md").read_text()
    assert len(json.loads((tmp_path / "build" / "bench" / "short.json").read_text())["results"]) == 1


def test_cells() -> None:
    """Names are unique files; the short run is the starred cells; a quick cell says that it is none."""
    store = Store(Path(), [], "")
    assert len({store.path(cell) for cell in CELLS}) == len(CELLS)
    speed = [f"fashion-mnist {m} b64 p1" for m in ("mlp", "lenet", "cnn")]
    assert {c.name for c in chosen(False, False)} == {*speed, *(f"whole {m}, one process" for m in SHORT)}
    assert all(small(cell).quick and small(cell).repeats == 1 for cell in CELLS)
    for cell in CELLS:
        tree = {k: v for k, v in cell.work.get("tree", {}).items() if k not in ("methods", "seeds")}
        assert config_of(tree).method.name
