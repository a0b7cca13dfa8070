"""Reproducing: every cell once, from the store or by running it; tables, pictures, pages; what fails is said."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from tiny_paper import TINY, room

from polyfed.comparison.grid import Cell
from polyfed.comparison.standing import State, States
from polyfed.engine.run_folder import environment
from polyfed.measure.watch import Silent
from polyfed.papers import recipe as room_of_recipes
from polyfed.papers import trial
from polyfed.papers.found import ItemFound
from polyfed.papers.recipe import find_items
from polyfed.papers.reproduce import Wish, reproduce
from polyfed.papers.store import Store
from polyfed.papers.verify import renew, stored_files

Cli = Callable[..., Any]
ROWS = {"fedavg": "renewed", "fedper": "stale"}  # of a table, and what becomes of them where FedPer was another method


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A room with small recipes, and a working directory of one's own."""
    monkeypatch.setattr(room_of_recipes, "HERE", room(tmp_path / "recipes"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Counting(Silent):
    """Remembers which cells were begun."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def cells(self, states: States, left: float | None) -> None:
        begun = [cell.name for cell, state in states.items() if state is State.RUNNING]
        self.said += [name for name in begun if name not in self.said]

    def round_of(self, cell: Cell, done: int, rounds: int, numbers: dict[str, Any]) -> None:
        """Not counted."""


def _go(
    where: Path, watch: Any = None, out: str = "out", names: tuple[str, ...] = ("tiny.table1",), **wish: Any
) -> Any:
    asked = Wish(**wish, who={"jobs": 1})
    store = Store.open(where / "results")
    return reproduce(find_items(names), asked, store, where / out, watch or Silent())


def test_a_finished_cell_is_never_computed_again(tiny: Path) -> None:
    first, second = Counting(), Counting()
    (before,) = _go(tiny, first)
    assert len(first.said) == 10
    assert not before.missing
    (after,) = _go(tiny, second, out="elsewhere")  # only the store knows
    assert second.said == []
    assert after.as_json() == before.as_json()
    sizes = [file.stat().st_size for file in (tiny / "results").rglob("*.json")]
    assert len(sizes) == 10
    assert max(sizes) < 3000


def test_another_table_with_the_same_experiments_runs_nothing(tiny: Path) -> None:
    watch = Counting()
    _go(tiny, only="alpha 1", rows="FedAvg", seeds=1)
    (found,) = _go(tiny, watch, names=("tiny.table2",), seeds=1)
    assert watch.said == []
    assert found.numbers(("all", "Federated averaging", "PA_sel"))


def test_a_finished_cell_lends_its_rounds_to_a_later_sitting(tiny: Path) -> None:
    """Only if its run is still there; otherwise they are made once more, with the same bits."""

    def phase_one(out: str) -> Any:
        (file,) = (tiny / out).rglob("alpha-1.fedavg-tuned*/summary.json")
        return json.loads(file.read_text())["phase_one"]

    _go(tiny, only="alpha 1", rows="FedAvg", seeds=1)
    stored = tiny / "results/tiny/table1/cpu/alpha-1/fedavg-tuned-s0.json"
    alone, base = json.loads(stored.read_text()), tiny / "results/tiny/table1/cpu/alpha-1/fedavg-s0.json"
    stored.unlink()
    (again,) = (tiny / "out").rglob("alpha-1.fedavg-tuned*")
    shutil.rmtree(again)
    before, watch = base.read_bytes(), Counting()
    _go(tiny, watch, only="alpha 1", rows="tuned", seeds=1)
    assert [name.split(".")[1] for name in watch.said] == ["fedavg-tuned"]
    assert "alpha-1.fedavg." in phase_one("out")["run"]
    assert json.loads(stored.read_text())["fingerprint"] == alone["fingerprint"]
    assert base.read_bytes() == before
    stored.unlink()
    _go(tiny, only="alpha 1", rows="tuned", seeds=1, out="elsewhere")
    assert phase_one("elsewhere") is None
    assert json.loads(stored.read_text())["fingerprint"] == alone["fingerprint"]


def test_panels_rows_and_seeds_are_chosen(tiny: Path) -> None:
    (found,) = _go(tiny, only="alpha 9", rows="per", seeds=1)
    assert [(cell.panel, cell.row, cell.seed) for cell in found.current] == [("alpha 9", "FedPer", 0)]


def test_when_the_time_is_up_no_cell_begins(tiny: Path) -> None:
    watch = Counting()
    (found,) = _go(tiny, watch, minutes=0.0)
    assert watch.said == []
    assert len(found.missing) == 10
    assert "- Not done: 10 cells: `polyfed reproduce tiny.table1 --scale cpu`" in found.markdown()


def test_a_whole_paper_is_run_only_where_that_is_said(tiny: Path, cli: Cli) -> None:
    """Two people have begun days of work by a name; a paper that is done is shown."""
    words = ("reproduce", "tiny", "--seeds", "1", "--jobs", "1", "--store", "kept", "--quiet")
    said = cli(*words)
    assert said.code == 2
    told = "tiny would run 7 cells of tiny.table1, tiny.table2, tiny.figure1, about a minute of this machine, and 5 of"
    assert f"{told} unknown length: name one" in said.err
    assert "--minutes M" in said.err
    assert "--all" in said.err
    assert not list((tiny / "kept").rglob("*.json"))
    cli("reproduce", "tiny", "--calibrate", "--json")
    assert "about a minute of this machine: name one" in cli(*words).err
    assert cli(*words, "--minutes", "0").code == 0
    assert not list((tiny / "kept").rglob("*.json"))
    assert cli(*words, "--all").code == 0
    assert cli(*words).code == 0
    assert cli("reproduce", "tiny.table1", "--all", "--seeds", "1", "--store", "kept", "--quiet").code == 0


def test_the_table_has_printed_numbers_differences_and_claims(tiny: Path) -> None:
    (found,) = _go(tiny)
    text = found.markdown()
    ours = found.numbers(("alpha 1", "FedAvg", "GA"), end=True)
    assert f"| 30.50 | {sum(ours.values()) / 2 - 30.5:+.2f} |" in text
    assert "| FedAvg, tuned (control) |" in text
    assert "- FedPer is best: **" in text
    assert text.index("- FedPer is best") < text.index("| panel | row |")
    assert ("Nothing was tried." in text) == (found.verdicts[0].word in ("does not hold", "undecided"))
    assert "Misprint: A digit is wrong." in text
    tuned, plain = (found.numbers(("alpha 1", row, "PA")) for row in ("FedAvg, tuned", "FedAvg"))
    assert tuned == found.numbers(("alpha 1", "FedAvg, tuned", "PA"), end=True)  # finishing changed it: the end counts
    assert tuned != plain
    assert found.numbers(("alpha 1", "FedPer", "GA")) == found.numbers(("alpha 1", "FedPer", "PA"))


def test_a_demo_is_run_kept_and_judged(tiny: Path) -> None:
    (found,) = _go(tiny, names=("tiny.figure1",))
    assert found.numbers(("IF 10", "all", "samples")) == {0: 20431.0}
    (verdict,) = found.verdicts
    assert verdict.word == "undecided"
    assert verdict.in_words().endswith(" with one seed")


def test_a_failed_cell_is_named_and_judged_without(tiny: Path, cli: Cli) -> None:
    wrong = TINY.replace("FedPer: {keys: {method: fedper}", "FedPer: {keys: {method: fedper, init: /nowhere}")
    room(tiny / "recipes", wrong)
    said = cli("reproduce", "tiny.table1", "--only", "alpha 9", "--seeds", "1", "--jobs", "1", "--quiet")
    assert said.code == 4
    assert "| alpha 9 | FedAvg |" in said.out
    assert "FedPer is best: **not measured** (F)" in said.out
    assert "FedPer, seed 0 failed: init: cannot read a model from '/nowhere'" in said.err
    assert "1 cells failed; try them again with: polyfed reproduce tiny.table1" in said.err


def test_what_has_no_data_is_left_out_and_said(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYFED_DATA", str(tiny / "nothing"))
    room(tiny / "recipes", TINY.replace("{keys: {split.alpha: 9.0}}", "{keys: {data.name: cinic10}}"))
    (nothing,) = _go(tiny, only="alpha 9", seeds=1)
    ((where, why),) = nothing.failures.items()
    assert where == "tiny.table1 (cpu)"
    assert "2 cells are left out, because cinic10 is not here: `polyfed data get cinic10`" in str(why)
    (both,) = _go(tiny, rows="FedPer", seeds=1)
    assert [cell.panel for cell in both.missing] == ["alpha 9"]
    assert not both.failures


def test_the_command_lists_runs_and_writes(tiny: Path, cli: Cli) -> None:
    """The list, a run with its files, and the list afterwards; the store is ./results where that is there."""
    (tiny / "results").mkdir()
    before = {entry["id"]: entry for entry in json.loads(cli("reproduce", "--json").out)}
    assert before["tiny.table1"]["data"] == {"digits": True}
    nothing = {"done": 0, "stale": 0, "without_data": 0, "minutes": None}
    panels = {"alpha 1": {"cells": 6, "unknown": 6, **nothing}, "alpha 9": {"cells": 4, "unknown": 4, **nothing}}
    assert before["tiny.table1"]["scales"]["cpu"] == {"cells": 10, "unknown": 10, **nothing, "panels": panels}
    told = cli("reproduce", "tiny", "--all", "--seeds", "1", "--out", "out", "--jobs", "1", "--json", "--quiet")
    assert told.code == 0, told.err
    assert [one["done"] for one in json.loads(told.out)] == [5, 1, 2]
    assert len(list((tiny / "results").rglob("*.json"))) == 7  # table 2 has its one cell from table 1
    for name in (
        "tiny.table1-cpu.md",
        "tiny.table1-cpu.png",
        "tiny.table1-cpu.csv",
        "tiny.figure1-cpu.png",
        "tiny.html",
    ):
        assert (tiny / "out" / name).stat().st_size > 100, name
    page = (tiny / "out" / "tiny.html").read_text()
    assert page.count("data:image/png;base64") == 2
    assert "polyfed reproduce tiny.table1 --scale paper" in page
    text = cli("reproduce").out
    assert "cpu: 5 of 10 cells done, about a minute left\n" in text
    assert "paper: 0 of 5 cells done, 5 of unknown length\n" in text
    assert "    alpha 9: " not in text


def test_what_is_chosen_is_listed_panel_by_panel(tiny: Path, cli: Cli) -> None:
    text = cli("reproduce", "tiny.table1", "--list", "--seeds", "2", "--rows", "FedAvg").out
    assert "cpu: 0 of 6 cells done" in text
    assert "alpha 1: 0 of 4 cells done" in text
    assert "alpha 9: 0 of 2 cells done" in text
    assert "paper: 0 of 6 cells done" in text
    chosen = ("reproduce", "--only", "alpha 9", "--scale", "cpu", "--calibrate", "--json")
    (entry,) = json.loads(cli(*chosen).out)
    assert (entry["id"], list(entry["scales"])) == ("tiny.table1", ["cpu"])
    assert entry["scales"]["cpu"]["minutes"] > 0
    assert not list(tiny.rglob("*-s0.json"))


def test_calibration_gives_minutes_and_is_remembered(tiny: Path, cli: Cli) -> None:
    told = json.loads(cli("reproduce", "tiny.table1", "--calibrate", "--json").out)
    assert told[0]["scales"]["cpu"]["minutes"] > 0
    assert told[0]["scales"]["paper"]["minutes"] > 0
    assert (tiny / "cache" / "polyfed" / "calibration.json").exists()
    again = json.loads(cli("reproduce", "--json").out)
    assert again[0]["scales"]["cpu"]["minutes"] == told[0]["scales"]["cpu"]["minutes"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["tiny.table9"], "did you mean"),
        (["tiny", "--scale", "big"], "--scale is paper or cpu (got 'big')"),
        (["tiny.figure1", "--scale", "paper"], "nothing of tiny.figure1 has the scale 'paper'"),
        (["tiny.table1", "--only", "beta"], "has the text of --only 'beta' in its names"),
        (["--only", "beta"], "nothing of the papers has the text of --only 'beta' in its names"),
        (["tiny.table1", "--jobs", "many"], "--jobs is auto or a number"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_sentence(tiny: Path, cli: Cli, words: list[str], sentence: str) -> None:
    said = cli("reproduce", *words, "--quiet")
    assert said.code == 2
    assert sentence in said.err
    assert said.err.count("\n") == 1


# ---- verify


def test_verify_repeats_cells_and_finds_the_same_bits(tiny: Path, cli: Cli) -> None:
    _go(tiny, seeds=1, names=("tiny.table1", "tiny.figure1"))
    said = cli("verify", "results", "--cells", "3", "--seed", "1", "--json", "--quiet")
    assert said.code == 0, said.err
    assert [one["outcome"] for one in json.loads(said.out)] == ["same bits"] * 3


def test_verify_says_what_differs_and_what_is_stale(tiny: Path, cli: Cli) -> None:
    _go(tiny, seeds=1, only="alpha 9")
    file = tiny / "results/tiny/table1/cpu/alpha-9/fedavg-s0.json"
    tree = json.loads(file.read_text())
    file.write_text(json.dumps({**tree, "final": {**tree["final"], "global.accuracy": 0.99}}))
    said = cli("verify", str(file), "--quiet")
    assert said.code == 1
    assert "different: tiny/table1/cpu/alpha-9/fedavg-s0.json: global.accuracy differs by 0." in said.out
    file.write_text(json.dumps({**tree, "sources": "0" * 16}))
    said = cli("verify", str(file), "--quiet")
    assert said.code == 0
    assert said.out.startswith("stale: ")
    file.write_text(json.dumps({**tree, "cpu": "Another", "fingerprint": "0" * 64}))
    said = cli("verify", str(file), "--quiet")
    assert said.code == 0
    assert "same numbers: " in said.out
    assert "another machine: cpu Another there" in said.out
    file.write_text(json.dumps({**tree, "fingerprint": "0" * 64}))
    assert cli("verify", str(file), "--quiet").code == 1


def _stale(file: Path, **other: str) -> dict[str, str]:
    """Make a stored cell one of other sources; what it was."""
    tree = json.loads(file.read_text())
    file.write_text(json.dumps({**tree, "sources": "0" * 16, **other}))
    return dict(tree)


def _sources(monkeypatch: pytest.MonkeyPatch, folder: Path, changed: str = "") -> None:
    """Let every commit have today's sources, but for `personal = head` in FedPer, which may read otherwise."""
    shutil.copytree(trial.TODAY / "polyfed", folder / "polyfed", ignore=shutil.ignore_patterns("__pycache__"))
    if changed:
        file = folder / "polyfed/methods/fedper.py"
        file.write_text(file.read_text().replace("personal = head", changed))
    monkeypatch.setattr(trial, "sources_at", lambda commit: nullcontext(folder))


@pytest.mark.slow
def test_stale_cells_are_renewed_where_their_first_rounds_have_the_same_bits(
    tiny: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    _go(tiny, only="alpha 9")
    files = {
        (row, seed): tiny / f"results/tiny/table1/cpu/alpha-9/{row}-s{seed}.json" for row in ROWS for seed in (0, 1)
    }
    before = {place: _stale(file) for place, file in files.items()}
    _sources(monkeypatch, tiny / "then", "trains = head")
    said = cli("verify", "results", "--renew", "--json", "--quiet")
    assert said.code == 0, said.err
    outcomes = {Path(one["cell"]).name: one["outcome"] for one in json.loads(said.out)}
    assert outcomes == {f"{row}-s{seed}.json": done for row, done in ROWS.items() for seed in (0, 1)}
    for seed in (0, 1):
        after = json.loads(files["fedavg", seed].read_text())
        assert after["made_by"]["sources"] == "0" * 16
        assert {**after, "made_by": None, "commit": None} == {**before["fedavg", seed], "made_by": None, "commit": None}
    (found,) = _go(tiny, out="elsewhere", only="alpha 9", minutes=0)
    assert [cell.row for cell in found.missing] == ["FedPer", "FedPer"]
    said = cli("verify", "results", "--renew", "--json", "--quiet")
    assert sorted(one["outcome"] for one in json.loads(said.out)) == ["current", "current", "stale", "stale"]


def test_of_cells_that_differ_in_their_seeds_alone_one_is_tried(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _go(tiny, only="alpha 9", rows="FedPer")
    for file in (tiny / "results").rglob("*.json"):
        _stale(file)
    tried: list[str] = []
    monkeypatch.setattr("polyfed.papers.verify.differs", lambda cell, stored: tried.append(cell.name) or "")
    root, files = stored_files(tiny / "results")
    assert [one.outcome for one in renew(root, files, Silent())] == ["renewed", "renewed"]
    assert tried == ["tiny.table1 (cpu), alpha 9, FedPer, seed 0"]


@pytest.mark.slow
def test_what_cannot_be_tried_says_why(tiny: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    _go(tiny, seeds=1, only="alpha 9", rows="FedPer")
    (file,) = (tiny / "results").rglob("*.json")
    _stale(file, commit="0" * 40)
    (said,) = json.loads(cli("verify", "results", "--renew", "--json", "--quiet").out)
    assert (said["outcome"], "git does not have its sources" in said["said"]) == ("stale", True)
    _sources(monkeypatch, tiny / "then", "personal = 3")
    (said,) = json.loads(cli("verify", "results", "--renew", "--json", "--quiet").out)
    assert (said["outcome"], "its first rounds fail with the sources in" in said["said"]) == ("stale", True)


def test_the_sources_of_a_commit_come_from_git() -> None:
    commit = environment()["commit"]
    if commit is None:
        pytest.skip("polyfed does not run from a repository")
    with trial.sources_at(commit) as folder:
        assert (folder / "polyfed/papers/recipe.py").is_file()
    assert not folder.exists()


# ---- killed


@pytest.mark.slow
def test_a_kill_loses_at_most_the_running_cell(tiny: Path) -> None:
    """Killed in the middle, a grid goes on: stored cells stay as they are, and the rest comes out as without a kill."""
    long = TINY.replace("rounds: 3}}", "rounds: 30}}")
    room(tiny / "recipes", long)
    code = (
        "import sys; from pathlib import Path; from polyfed.papers import recipe; from polyfed.cli import call\n"
        f"recipe.HERE = Path({str(tiny / 'recipes')!r})\n"
        "sys.exit(call(['reproduce', 'tiny.table1', '--store', 'kept', '--out', 'out', '--jobs', '1', '--quiet']))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tiny, stdout=subprocess.DEVNULL)
    while not (done := list((tiny / "kept").rglob("*.json"))) and process.poll() is None:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = {file: file.read_text() for file in done}
    assert before
    assert len(list((tiny / "kept").rglob("*.json"))) < 10
    again = subprocess.run([sys.executable, "-c", code], cwd=tiny, capture_output=True, text=True, timeout=500)
    assert again.returncode == 0, again.stderr
    assert {file: file.read_text() for file in done} == before
    (whole,) = _go(tiny, out="without")
    killed = ItemFound.of(whole.item, "cpu", whole.cells, Store.open(tiny / "kept"))
    prints = [[one.current[cell].fingerprint for cell in whole.cells] for one in (whole, killed)]
    assert prints[0] == prints[1]
