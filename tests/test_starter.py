"""The quick `polyfed` of the tests does what the installed one does, and leaves nothing behind."""

import subprocess
import sys
from pathlib import Path

import pytest

from killing import wait_for
from snippets import environment

SCRIPT = "from starter import programs; print(programs(), flush=True); input()"


def said(folder: Path, *command: str) -> tuple[int, str, str]:
    done = subprocess.run(
        command, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_it_says_and_does_what_the_installed_one_does(tmp_path: Path) -> None:
    """Where it was called, with the variables it was called with, down to the exit code."""
    for words in (["--version"], ["methods", "fedper"], ["run", "method=fedpre"], ["show", "nowhere"]):
        assert said(tmp_path, "polyfed", *words) == said(tmp_path, sys.executable, "-m", "polyfed.cli", *words), words
    run = "polyfed run rounds=1 split.clients=3 data.limit=20 model.width=0.1 --quiet | head -c 2 && ls out/*"
    code, out, err = said(tmp_path, "bash", "-c", run)
    assert (code, err) == (0, "")
    assert "summary.json" in out


@pytest.mark.slow
def test_it_ends_with_whoever_started_it() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent,
    )
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    assert (folder / "polyfed").exists()
    process.kill()
    process.wait()
    assert wait_for(lambda: not folder.exists())
