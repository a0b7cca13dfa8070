"""A run directory with links in it, as somebody else may have made it: whatever they point at stays as it was."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import polyfed
from polyfed.engine.checkpoint import Progress
from polyfed.errors import DataError, Interrupted

TABLES = ("rounds", "clients", "classes", "training", "spent")
FILES = [f"{table}.csv" for table in TABLES]
FILES += ["log.txt", "lock", "config.yaml", "environment.json", "summary.json"]
FOLDERS = ["checkpoints", "memory", "checkpoints/{at}", "arrays"]


class Stop:
    """Stops a run after its second round."""

    def round(self, done: int, rounds: int, numbers: dict[str, Any]) -> None:
        if done == 2:
            raise Interrupted("enough for this test")

    def say(self, text: str) -> None: ...


@pytest.fixture(scope="module")
def stopped(trial: Any, own: Callable[[str], str]) -> Path:
    """A run with memories that stopped after its second round."""
    run = trial.run({"method.name": own("Counting")}, watch=Stop())
    with pytest.raises(Interrupted):
        run.go()
    return run.folder.path


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "run"))


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


def led_out(run: Path, name: str) -> Path:
    """Move something of a run away and put a link to it in its place; where it is now."""
    outside = run.parent / "outside"
    outside.mkdir()
    target = outside / Path(name).name
    if (run / name).exists():
        (run / name).rename(target)
    else:
        target.write_text("precious\n" * 100)
    (run / name).symlink_to(target)
    return outside


@pytest.mark.parametrize("name", FILES)
def test_resume_leaves_what_a_file_points_at(name: str, run: Path, cli: Any) -> None:
    outside = led_out(run, name)
    before = contents(outside)
    said = cli("resume", str(run), "--quiet")
    assert (said.code, "is a link, which may lead anywhere" in said.err, said.err.count("\n")) == (3, True, 1), said
    assert contents(outside) == before


@pytest.mark.parametrize("name", FOLDERS)
def test_resume_leaves_what_a_folder_points_at(name: str, run: Path, cli: Any) -> None:
    if name == "arrays":
        (run / "arrays").mkdir(exist_ok=True)
    newest = max(p.name for p in (run / "checkpoints").iterdir())
    outside = led_out(run, name.format(at=newest))
    before = contents(outside)
    said = cli("resume", str(run), "--quiet")
    if name != "arrays":  # which this method never writes
        told = said.err + (run / "log.txt").read_text()  # a link below a checkpoint makes that checkpoint a corrupt one
        assert (said.code, said.err.count("\n"), "is a link, which may lead anywhere" in told) == (3, 1, True), said
    assert contents(outside) == before


@pytest.mark.parametrize("name", ["server.safetensors", "head.json"])
def test_a_checkpoint_with_a_link_in_it_is_not_read(name: str, run: Path, cli: Any) -> None:
    for checkpoint in (run / "checkpoints").iterdir():
        shutil.copy(checkpoint / name, run.parent / f"{checkpoint.name}-{name}")
        (checkpoint / name).unlink()
        (checkpoint / name).symlink_to(run.parent / f"{checkpoint.name}-{name}")
    said = cli("resume", str(run), "--quiet")
    assert (said.code, "is corrupt; the run cannot be resumed" in said.err) == (3, True), said
    assert "is a link, which may lead anywhere" in (run / "log.txt").read_text()


def test_a_memory_that_is_a_link_is_not_read(run: Path, cli: Any) -> None:
    for file in (run / "memory").iterdir():
        shutil.copy(file, run.parent / file.name)
        file.unlink()
        file.symlink_to(run.parent / file.name)
    before = contents(run.parent / "run" / "memory")
    assert cli("resume", str(run), "--quiet").code == 3
    assert contents(run / "memory") == before


def test_hard_links_are_not_appended_to(run: Path, cli: Any) -> None:
    for name in ("rounds.csv", "log.txt"):
        os.link(run / name, run.parent / name)
    before = (run.parent / "rounds.csv").read_bytes()
    said = cli("resume", str(run), "--quiet")
    assert (said.code, "has another name elsewhere (a hard link)" in said.err) == (3, True), said
    assert (run.parent / "rounds.csv").read_bytes() == before


@pytest.mark.parametrize("name", ["rounds.csv", "log.txt", "config.yaml", "summary.json", "lock", "environment.json"])
@pytest.mark.parametrize("command", ["resume", "show", "report"])
def test_a_pipe_is_not_waited_for(name: str, command: str, run: Path, cli: Any) -> None:
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    said = cli(command, str(run), "--quiet")
    assert said.code in (0, 3), said
    if command == "resume" and name == "environment.json":  # which the bits do not depend on: the log says so
        assert "environment.json' is not a plain file" in (run / "log.txt").read_text()
    elif command == "resume":
        sentence = "it has no config.yaml" if name == "config.yaml" else "is not a plain file"
        assert (said.code, sentence in said.err) == (3, True), said


def test_a_report_is_not_written_through_a_link(run: Path, cli: Any) -> None:
    outside = led_out(run, "report.html")
    before = contents(outside)
    assert cli("report", str(run), "--quiet").code == 0
    assert contents(outside) == before


def test_reports_do_not_read_through_links(run: Path, cli: Any) -> None:
    for name in ("rounds.csv", "federation.json", "config.yaml"):
        target = run.parent / f"secret-{name}"
        (run / name).rename(target)
        (run / name).symlink_to(target)
        said = cli("report", str(run), "--quiet")
        assert (said.code, "is a link, which may lead anywhere" in said.err) == (3, True), said
        (run / name).unlink()
        target.rename(run / name)


def test_an_export_is_not_written_through_a_link(run: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (run / "export").symlink_to(tmp_path / "outside")
    with pytest.raises(DataError, match="is a link"):
        polyfed.load(run).export("safetensors", 0)
    assert contents(tmp_path / "outside") == {}


def test_a_tracker_does_not_write_through_links(run: Path, tmp_path: Path) -> None:
    from polyfed.files import Place
    from polyfed.measure.trackers import MLflow, TensorBoard

    (tmp_path / "outside").mkdir()
    (run / "tensorboard").symlink_to(tmp_path / "outside")
    (run / "mlflow" / "0").mkdir(parents=True)
    (run / "mlflow" / "0" / "metrics").symlink_to(tmp_path / "outside")
    for tracker in (TensorBoard(), MLflow()):
        with pytest.raises(DataError, match="is a link"):
            tracker.open(Place(run), None, Progress().round)  # type: ignore[arg-type]
    assert contents(tmp_path / "outside") == {}


def test_a_comparison_does_not_run_in_a_link(tmp_path: Path, tiny: dict[str, Any], cli: Any) -> None:
    made = polyfed.compare(tiny, methods=["fedavg"], seeds=1, out=tmp_path / "c")
    (cell,) = (p for p in made.path.iterdir() if p.is_dir())
    (cell / "summary.json").unlink()
    (tmp_path / "outside").mkdir()
    cell.rename(tmp_path / "outside" / "cell")
    cell.symlink_to(tmp_path / "outside" / "cell")
    before = contents(tmp_path / "outside")
    for command in ("resume", "show", "report"):
        said = cli(command, str(tmp_path / "c"), "--quiet")
        assert (said.code, "is a link, which may lead anywhere" in said.err) == (3, True), said
    assert contents(tmp_path / "outside") == before
