"""Comparisons that are killed, and that two processes work on: the same table, and every cell done exactly once."""

import signal
from pathlib import Path
from typing import Any

import pytest

import polyfed
from killing import command, forked, wait_for

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
    """The table of a comparison without its last column, which says seconds."""
    return [line.rpartition("|")[0].rpartition("|")[0] or line for line in (path / "table.md").read_text().splitlines()]


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
