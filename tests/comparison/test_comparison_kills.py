"""Comparisons that are killed, and that two processes work on: the same table, and every cell done exactly once."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import polyfed
from killing import children, command, descendants, forked, wait_for

pytestmark = pytest.mark.slow
Keys = dict[str, Any]
LONG = 600.0  # a busy machine takes its time


@pytest.fixture(scope="module")
def words(tiny: Keys) -> list[str]:
    """Eight cells of some rounds each; the personal part of fedper makes memories."""
    keys = {**tiny, "rounds": 4, "data.limit": 40}
    grid = ["methods=[fedavg,fedper]", "seeds=2", "split.alpha=[0.1,1.0]", "baseline=fedavg"]
    return [*(f"{key}={value}" for key, value in keys.items()), *grid]


def timeless(path: Path) -> list[str]:
    """The table of a comparison without what says seconds: its last column and lines of the legend."""
    lines = (path / "table.md").read_text().splitlines()
    told = [line for line in lines if "seconds by phase" not in line and "outside training" not in line]
    return [line.rpartition("|")[0].rpartition("|")[0] or line for line in told]


def finished(path: Path) -> list[str]:
    return sorted(file.parent.name for file in path.glob("*/summary.json"))


def log_of(cell: Path) -> str:
    return (cell / "log.txt").read_text()


@pytest.fixture(scope="module")
def whole(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The comparison, undisturbed."""
    out = tmp_path_factory.mktemp("undisturbed") / "whole"
    assert forked(out, ["compare", *words, "--out", str(out)]).end() == 0
    return out


def test_killed_half_way_it_resumes_to_the_same_table(words: list[str], whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "killed"
    for number, again in ((2, ["compare", *words, "--out", str(out)]), (5, ["resume", str(out)])):
        process = forked(out, again)
        assert wait_for(lambda number=number: len(finished(out)) >= number, LONG)
        seen = process.kill()
        assert process.end() == -signal.SIGKILL
        assert wait_for(lambda seen=seen: not seen.alive(), seconds=5)
    before = {name: (out / name / "summary.json").stat().st_mtime_ns for name in finished(out)}
    assert len(before) < 8, "killed before its end, or this test shows nothing"
    assert not (out / "table.md").exists()
    assert command(out, ["resume", str(out)]).end() == 0
    assert timeless(out) == timeless(whole)
    assert {name: (out / name / "summary.json").stat().st_mtime_ns for name in before} == before
    made, undisturbed = polyfed.load(out), polyfed.load(whole)
    assert [r.fingerprint for r in made.results] == [r.fingerprint for r in undisturbed.results]


def test_two_processes_share_the_cells(words: list[str], whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "shared"
    both = [forked(out, ["compare", *words, "--out", str(out)]) for _ in range(2)]
    assert [process.end() for process in both] == [0, 0]
    assert finished(out) == finished(whole)
    assert len(finished(out)) == 8
    for name in finished(out):
        log = log_of(out / name)
        assert log.count("begins: method") == 1, name
        assert "resumed" not in log
    assert timeless(out) == timeless(whole)
    made, undisturbed = polyfed.load(out), polyfed.load(whole)
    assert [r.fingerprint for r in made.results] == [r.fingerprint for r in undisturbed.results]


def test_a_killed_process_leaves_its_cell_to_the_other(words: list[str], whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "left"
    first = forked(out, ["compare", *words, "--out", str(out)])
    assert wait_for(lambda: finished(out), LONG)
    second = forked(out, ["resume", str(out)])
    assert wait_for(lambda: len(finished(out)) >= 3, LONG)
    first.kill()
    assert first.end() == -signal.SIGKILL
    assert second.end() == 0
    assert timeless(out) == timeless(whole)


class TestSideBySide:
    """Two cells at once with a worker each; of three methods one takes the rounds of another."""

    @pytest.fixture(scope="class")
    def words(self, tiny: Keys) -> list[str]:
        keys = {**tiny, "rounds": 4, "data.limit": 40, "engine.workers": 1, "seeds": 2}
        return ["methods=[fedavg-ft,fedavg,fedper]", *(f"{key}={value}" for key, value in keys.items())]

    @pytest.fixture(scope="class")
    def alone(self, words: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
        """Undisturbed, one after the other, and nothing shared."""
        out = tmp_path_factory.mktemp("alone") / "alone"
        assert forked(out, ["compare", *words, "jobs=1", "share=false", "--out", str(out)]).end() == 0
        return out

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
    def test_nobody_outlives_the_parent_and_nothing_is_lost(
        self, words: list[str], alone: Path, tmp_path: Path, number: signal.Signals
    ) -> None:
        out = tmp_path / "c"
        first, second = ["compare", *words, "--out", str(out)], ["resume", str(out)]
        for count, again in ((1, first), (3, second)):
            process = forked(out, [*again, "jobs=2"])
            assert wait_for(lambda count=count: len(finished(out)) >= count, LONG)
            assert wait_for(lambda pid=process.pid: len(descendants(pid)) >= 3, LONG)
            seen = process.kill(number)
            assert process.end() == (-signal.SIGKILL if number == signal.SIGKILL else 130)
            assert wait_for(lambda seen=seen: not seen.alive(), seconds=5)
        assert len(finished(out)) < 6, "stopped before its end, or this test shows nothing"
        assert command(out, ["resume", str(out), "jobs=3"]).end() == 0
        made, undisturbed = polyfed.load(out), polyfed.load(alone)
        assert [r.fingerprint for r in made.results] == [r.fingerprint for r in undisturbed.results]
        assert timeless(out)[:5] == timeless(alone)[:5]
        assert (made.results[0].summary["phase_one"] or {}).get("run", "").endswith("fedavg-s0")

    def test_a_cell_that_is_killed_fails_alone(self, words: list[str], alone: Path, tmp_path: Path) -> None:
        out = tmp_path / "c"
        process = forked(out, ["compare", *words, "jobs=2", "--out", str(out)])
        assert wait_for(lambda: len(children(process.pid)) == 2, LONG)
        os.kill(children(process.pid)[0], signal.SIGKILL)
        assert process.end() == 4
        assert "its process was killed (SIGKILL)" in (tmp_path / "c.out").read_text()
        assert len(finished(out)) == 5
        assert command(out, ["resume", str(out)]).end() == 0
        made, undisturbed = polyfed.load(out), polyfed.load(alone)
        assert [r.fingerprint for r in made.results] == [r.fingerprint for r in undisturbed.results]
