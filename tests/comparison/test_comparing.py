"""Running a comparison: what is done stays done, what fails is listed, what another process holds is left to it."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from torch import nn

import polyfed
from polyfed.api import config_of
from polyfed.comparison.folder import ComparisonFolder
from polyfed.comparison.grid import Cell
from polyfed.comparison.standing import State, States, longest_first, time_left
from polyfed.engine import local
from polyfed.engine.rounds import Run
from polyfed.engine.run_folder import RunFolder
from polyfed.errors import DataError, Interrupted, UsageError
from polyfed.measure.watch import Silent

Keys = dict[str, Any]
Cli = Callable[..., Any]
FRAGILE = '''
from pathlib import Path
from polyfed.methods import Method

class Fragile(Method):
    """FedAvg that breaks on one seed, until it is repaired."""

    repaired: str

    def merge(self, server, uploads):
        if server.task.seed == 1 and not Path(self.repaired).exists():
            raise ValueError("the server tripped")
        super().merge(server, uploads)
'''


class Onlooking(Silent):
    """Remembers which cells ran, and every state they had."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.seen: dict[str, list[State]] = {}
        self.said: list[str] = []

    def cells(self, states: States, left: float | None) -> None:
        for cell, state in states.items():
            had = self.seen.setdefault(cell.name, [])
            if not had or had[-1] is not state:
                had.append(state)
                self.ran += [cell.name] if state is State.RUNNING else []

    def round_of(self, cell: Cell, done: int, rounds: int, numbers: dict[str, Any]) -> None:
        self.round(done, rounds, numbers)

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def fragile(tmp_path: Path) -> Keys:
    """Two methods, one of which breaks on seed 1 as long as `repaired` is not there."""
    (tmp_path / "fragile.py").write_text(FRAGILE)
    return {
        "methods": ["fedavg", f"{tmp_path}/fragile.py:Fragile"],
        "seeds": [1],
        "Fragile.repaired": str(tmp_path / "repaired"),
    }


def stamps(path: Path) -> dict[str, int]:
    """When the results of finished cells were written."""
    return {file.parent.name: file.stat().st_mtime_ns for file in path.glob("*/summary.json")}


def steady(path: Path) -> pandas.DataFrame:
    """The table without the one column that no seed decides."""
    table = pandas.read_csv(path / "table.csv")
    return table.drop(columns=[name for name in table.columns if name.startswith("seconds")])


class TestFailures:
    def test_one_cell_fails_the_others_run_on(
        self, fragile: Keys, tiny: Keys, tmp_path: Path, runs: Path, cli: Cli
    ) -> None:
        out = tmp_path / "c"
        made = polyfed.compare(tiny, fragile, out=out)
        (failed,) = made.failures
        assert failed.endswith("Fragile-s1")
        assert str(made.failures[failed]) == "a fault in polyfed or a method: ValueError: the server tripped"
        assert made.missing == [failed]
        assert not made.finished
        assert f"not finished: {failed}" in made.table()
        log = (out / failed / "log.txt").read_text()
        assert "failed: a fault in polyfed or a method: ValueError: the server tripped" in log
        assert "Traceback" in log
        before = stamps(out)
        assert len(before) == 1

        again = cli("resume", str(out), "--quiet")  # still broken
        assert again.code == 4
        assert again.err.splitlines() == [
            f"polyfed: {failed} failed: a fault in polyfed or a method: ValueError: the server tripped",
            f"polyfed: 1 cells failed; try them again with: polyfed resume {out}",
        ]
        assert "FedAvg" in again.out

        (tmp_path / "repaired").touch()
        assert cli("resume", str(out), "--quiet").code == 0
        assert before.items() < stamps(out).items()
        whole = polyfed.compare(tiny, fragile)
        assert whole.finished
        pandas.testing.assert_frame_equal(steady(whole.path), steady(out))

    def test_all_fail_alike(self, cli: Cli, tmp_path: Path) -> None:
        """Then the mistake is not a cell's."""
        words = ["methods=[fedavg,fedper]", "data=folder", f"data.root={tmp_path}/nothing", "engine.workers=0"]
        said = cli("compare", *words, "--quiet", "--out", str(tmp_path / "c"))
        assert said.code == 3
        assert said.err.count("\n") == 1
        assert "failed" not in said.err

    def test_cells_begun_with_another_config(self, tiny: Keys, tmp_path: Path) -> None:
        polyfed.run(tiny, method="fedavg", out=tmp_path / "c" / "fedavg-s0", **{"train.lr": 0.5})
        (tmp_path / "c" / "fedavg-s0" / "summary.json").unlink()
        made = polyfed.compare(tiny, methods=["fedavg", "fedper"], seeds=1, out=tmp_path / "c")
        assert "was begun with another config" in str(made.failures["fedavg-s0"])
        assert made.missing == ["fedavg-s0"]

    def test_json(self, fragile: Keys, tiny_words: list[str], tmp_path: Path, cli: Cli) -> None:
        words = [f"{key}={value}".replace("'", "").replace(" ", "") for key, value in fragile.items()]
        said = cli("compare", *tiny_words, *words, "--json", "--quiet", "--out", str(tmp_path / "c"))
        value = json.loads(said.out)
        assert said.code == 4
        assert list(value["failed"].values()) == ["a fault in polyfed or a method: ValueError: the server tripped"]
        assert value["missing"] == list(value["failed"])
        assert [run["method"] for run in value["runs"]] == ["fedavg"]


@pytest.fixture(scope="module")
def made(tiny: Keys, tmp_path_factory: pytest.TempPathFactory) -> polyfed.Comparison:
    """A comparison that was run to its end."""
    out = tmp_path_factory.mktemp("again") / "c"
    return polyfed.compare(tiny, {"split.alpha": [0.1, 5.0]}, methods=["fedavg", "fedper"], seeds=1, out=out)


class TestAgain:
    def test_nothing_is_computed_again(self, made: polyfed.Comparison, tiny: Keys, cli: Cli) -> None:
        before, table, watch = stamps(made.path), made.table(), Onlooking()
        assert len(before) == 4
        keys = {**tiny, "split.alpha": [0.1, 5.0], "methods": ["fedavg", "fedper"], "seeds": 1}
        assert polyfed.compare(keys, out=made.path, progress=watch).table() == table
        assert watch.ran == []
        for command in (["resume", str(made.path), "--workers", "1"], ["show", str(made.path)]):
            said = cli(*command, *(["--quiet"] if command[0] == "resume" else []))
            assert said.code == 0
            assert table in said.out
        assert stamps(made.path) == before

    def test_the_file_repeats_it(self, made: polyfed.Comparison, tiny: Keys, tmp_path: Path) -> None:
        again = polyfed.compare(made.path / "comparison.yaml", out=tmp_path / "c")
        assert [r.fingerprint for r in again.results] == [r.fingerprint for r in made.results]
        assert [r.path.name for r in again.results] == [r.path.name for r in made.results]

    @pytest.mark.parametrize(
        ("more", "other"),
        [({"seeds": 2}, "seeds"), ({"methods": ["fedavg"]}, "methods"), ({"rounds": 2}, "rounds")],
    )
    def test_another_grid_is_refused(self, made: polyfed.Comparison, tiny: Keys, more: Keys, other: str) -> None:
        before = {file: file.stat().st_mtime_ns for file in made.path.rglob("*")}
        keys = {**tiny, "split.alpha": [0.1, 5.0], "methods": ["fedavg", "fedper"], "seeds": 1, **more}
        with pytest.raises(UsageError) as raised:
            polyfed.compare(keys, out=made.path)
        assert str(raised.value) == f"'{made.path}' holds another comparison (other {other}); give another --out"
        after = {file: file.stat().st_mtime_ns for file in made.path.rglob("*")}
        assert {file for file in after if after[file] != before.get(file)} <= {made.path / "lock"}

    def test_a_directory_with_other_things_is_refused(self, tiny: Keys, tmp_path: Path) -> None:
        (tmp_path / "thesis.txt").write_text("precious")
        with pytest.raises(UsageError, match="exists and is not empty; a comparison never overwrites"):
            polyfed.compare(tiny, methods=["fedavg"], out=tmp_path)
        assert not (tmp_path / "lock").exists()

    def test_a_file_that_somebody_is_just_writing_is_no_other_thing(self, tiny: Keys, tmp_path: Path) -> None:
        """As a second process sees the directory while the first one writes the grid down."""
        (tmp_path / ".comparison.yaml.123.tmp").write_text("half")
        made = polyfed.compare(tiny, methods=["fedavg"], seeds=1, rounds=1, out=tmp_path)
        assert [result.finished for result in made.results] == [True]

    def test_shown_against_a_baseline(self, made: polyfed.Comparison, cli: Cli) -> None:
        said = cli("show", str(made.path), "--baseline", "fedavg")
        assert "difference to FedAvg" in said.out
        assert cli("show", str(made.path), "--baseline", "fedprox").err == (
            "polyfed: the baseline 'fedprox' is not in the comparison; did you mean 'fedper'?\n"
        )
        run = made.results[0].path
        assert "is one run" in cli("show", str(run), "--baseline", "fedavg").err
        with pytest.raises(UsageError, match="there is no form 'markdwn' of a table; did you mean 'markdown'"):
            made.table("markdwn")

    def test_what_is_not_finished(self, made: polyfed.Comparison, cli: Cli) -> None:
        summary = made.path / "fedper-split.alpha=5.0-s0" / "summary.json"
        kept = summary.read_text()
        summary.unlink()
        try:
            said = cli("show", str(made.path))
            assert said.code == 0
            assert "not finished: fedper-split.alpha=5.0-s0" in said.out
            assert said.out.endswith(f"go on with: polyfed resume {made.path}\n")
            assert json.loads(cli("show", str(made.path), "--json").out)["missing"] == ["fedper-split.alpha=5.0-s0"]
        finally:
            summary.write_text(kept)

    def test_a_file_that_is_no_grid(self, tmp_path: Path, cli: Cli) -> None:
        (tmp_path / "comparison.yaml").write_text("seeds: many\n")
        said = cli("show", str(tmp_path))
        assert (said.code, said.err.count("\n")) == (3, 1)
        assert f"the comparison at '{tmp_path}' is corrupt: comparison.yaml: seeds must be" in said.err

    def test_read_where_its_methods_are_not_known(
        self, fragile: Keys, tiny: Keys, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The file of a method is gone: the comparison is shown, and cannot go on."""
        monkeypatch.chdir(tmp_path)
        own = {"methods": ["fragile.py:Fragile"], "Fragile.repaired": ["x", "y"], "split.alpha": [0.1, 1.0]}
        made = polyfed.compare(tiny, own, seeds=[0])
        rows = made.as_table().rows
        assert [row[:2] for row in rows[:2]] == [[f"fragile.py:Fragile, repaired={x}", "0.1"] for x in "xy"]
        for run in made.path.glob("fragile*"):
            run.rename(run.with_name(run.name.replace("fragile", "gone")))
        grid = made.path / "comparison.yaml"
        grid.write_text(grid.read_text().replace("fragile.py", "gone.py"))
        found = polyfed.load(made.path)
        assert found.finished
        assert found.as_table().rows == [[row[0].replace("fragile", "gone"), *row[1:]] for row in rows]
        said = cli("resume", str(made.path), "--quiet")
        assert (said.code, said.err.count("\n")) == (3, 1)
        assert "cannot be used here: comparison.yaml: cannot import method 'gone.py:Fragile'" in said.err


class TestStopped:
    def test_interrupted_says_how_to_go_on(self, tiny: Keys, tmp_path: Path, cli: Cli) -> None:
        class Impatient(Onlooking):
            def round(self, done: int, rounds: int, numbers: dict[str, Any]) -> None:
                if len(self.ran) == 2:
                    raise KeyboardInterrupt

        out = tmp_path / "c"
        with pytest.raises(Interrupted, match=f"interrupted; go on with: polyfed resume {out}"):
            polyfed.compare(tiny, methods=["fedavg", "fedper"], seeds=1, out=out, progress=Impatient(), jobs=1)
        assert set(stamps(out)) == {"fedavg-s0"}
        assert not (out / "table.csv").exists()
        before, watch = stamps(out), Onlooking()
        made = polyfed.resume(out, progress=watch)
        assert watch.ran == ["fedper-s0"]
        assert before.items() < stamps(out).items()
        whole = polyfed.compare(tiny, methods=["fedavg", "fedper"], seeds=1)
        pandas.testing.assert_frame_equal(steady(made.path), steady(whole.path))

    def test_a_cell_that_was_only_just_begun(self, tiny: Keys, tmp_path: Path) -> None:
        """Killed between a directory and its config: the directory is taken as it is."""
        out = tmp_path / "c"
        (out / "fedavg-s0").mkdir(parents=True)
        (out / "fedavg-s0" / "environment.json").write_text("{}")
        assert polyfed.compare(tiny, methods=["fedavg"], seeds=1, out=out).finished


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Callable[[str, Callable[[], bool]], None]]:
    """Holds the lock of a cell, as another process would, until something is seen (half a minute at most)."""
    threads = []

    def hold(name: str, seen: Callable[[], bool]) -> None:
        ready = threading.Event()

        def work() -> None:
            with RunFolder(tmp_path / "c" / name).locked():
                ready.set()
                until = time.monotonic() + 30
                while not seen() and time.monotonic() < until:
                    time.sleep(0.01)

        (tmp_path / "c" / name).mkdir(parents=True, exist_ok=True)
        threads.append(threading.Thread(target=work))
        threads[-1].start()
        ready.wait()

    yield hold
    for thread in threads:
        thread.join()


class TestTogether:
    @pytest.mark.parametrize("jobs", [1, 2])
    def test_a_cell_in_use_is_looked_at_again_in_the_end(
        self, tiny: Keys, tmp_path: Path, held: Any, jobs: int
    ) -> None:
        watch, keys = Onlooking(), {**tiny, "methods": ["fedavg", "fedper"], "seeds": 1, "jobs": jobs}
        waiting = "1 cells are another process's; waiting for them"
        held("fedavg-s0", lambda: waiting in watch.said)
        made = polyfed.compare(keys, out=tmp_path / "c", progress=watch)
        assert made.finished
        assert watch.ran == ["fedper-s0", "fedavg-s0"]
        assert watch.seen["fedavg-s0"] == [State.WAITING, State.ELSEWHERE, State.RUNNING, State.DONE]
        assert waiting in watch.said

    def test_workers_are_those_the_cell_names(
        self, tiny: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        counts: list[int] = []

        class Counted(local.Workers):
            def __init__(self, count: int, *how: Any) -> None:
                super().__init__(count, *how)
                counts.append(count)

        monkeypatch.setattr(local, "Workers", Counted)
        keys = {key: value for key, value in tiny.items() if key != "engine.workers"}
        made = polyfed.compare(keys, {"engine.workers": [1, 2]}, methods=["fedavg", "fedper"], seeds=1, jobs=1)
        assert counts == [1, 2]
        one, two = (made.results[at].fingerprint for at in (0, 2))
        assert one == two


class Small(nn.Module):
    """A user's model, which no other process can import."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, 2)

    def forward(self, x: Any) -> Any:
        return self.out(x)


def test_python_objects_are_given_again(tmp_path: Path) -> None:
    y = np.arange(60) % 2
    x = np.random.default_rng(0).normal(size=(60, 6)).astype("float32") + y[:, None]
    keys = {"split": {"clients": 3, "alpha": [0.5, 5.0]}, "rounds": np.int64(1), "engine": {"workers": 0}}
    made = polyfed.compare(keys, data=(x, y), model=Small, methods=["fedavg"], seeds=[1], out=tmp_path / "c")
    assert [dict(cell.setting) for cell in made.folder.grid.cells] == [{"split.alpha": 0.5}, {"split.alpha": 5.0}]
    (made.results[0].path / "summary.json").unlink()
    assert polyfed.resume(tmp_path / "c", data=(x, y), model=Small).finished
    with pytest.raises(UsageError, match="cannot be part of a comparison"):
        polyfed.compare(keys, methods=["fedavg"], rounds=object())


def cells(*places: tuple[str, float, int]) -> list[Cell]:
    return [Cell(row, {"split.alpha": alpha}, seed, ()) for row, alpha, seed in places]


def test_time_left() -> None:
    """By its like, else by its row, else by all; what is done, failed or another's takes no time of ours."""
    all_cells = cells(("a", 0.1, 0), ("a", 0.1, 1), ("a", 0.5, 0), ("b", 0.1, 0), ("c", 0.1, 0), ("c", 0.1, 1))
    states = dict(
        zip(all_cells, [State.DONE, State.WAITING, State.WAITING, State.DONE] + [State.RUNNING] * 2, strict=True)
    )
    seconds = {all_cells[0]: 10.0, all_cells[3]: 40.0}
    assert time_left(states, seconds) == 10 + 10 + 25 + 25
    assert time_left(states, {}) is None
    states |= {all_cells[4]: State.FAILED, all_cells[5]: State.ELSEWHERE}
    assert time_left(states, seconds) == 20


def test_the_longest_of_a_seed_begins_first_and_before_it_whom_others_wait_for() -> None:
    """By what is known of its row; where nothing is known, the order stays."""
    all_cells = cells(*((row, 0.1, seed) for seed in (1, 0) for row in "abcd"))
    seconds = dict(zip(all_cells[:4], (10.0, 40.0, 20.0, 30.0), strict=True))
    assert [(c.seed, c.row) for c in longest_first(all_cells[3:], seconds)] == [
        (1, "d"), (0, "b"), (0, "d"), (0, "c"), (0, "a"),
    ]  # fmt: skip
    assert [c.row for c in longest_first(all_cells[4:], seconds, [all_cells[4]])] == ["a", "b", "d", "c"]
    assert longest_first(all_cells, {}) == all_cells


def test_a_finished_run_is_not_run_again(tiny: Keys, tmp_path: Path) -> None:
    """Who waited for a lock may find that the work is done."""
    result = polyfed.run(tiny, out=tmp_path / "r")
    before = {file: file.stat().st_mtime_ns for file in result.path.rglob("*")}
    config = config_of(result.path / "config.yaml")
    assert Run(config, RunFolder(result.path), config.engine.open(), Silent()).go() == result.summary
    assert {file: file.stat().st_mtime_ns for file in result.path.rglob("*")} == before


def test_a_run_is_no_comparison(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a comparison: it has no"):
        ComparisonFolder.existing(tmp_path)
