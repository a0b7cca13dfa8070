"""Any write, sync, rename, send or receive of a small run may fail: it ends in a sentence and resumes to the same."""

import os
import random
import subprocess
import sys

import pytest

import faults
from faults import KINDS, Fault, Tally, Walk, install

DRAWN = 18  # cases of about a thousand; `make faults` walks them all
MORE = 100  # of the slow tier


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    return Walk(tmp_path_factory.mktemp("faults"))


def test_the_run_has_memory_checkpoints_records_and_a_worker(walk):
    out = walk.whole["run"]
    assert list((out / "memory").glob("*.safetensors"))
    assert list((out / "checkpoints").glob("at-*/head.json"))
    assert min(walk.counts["run"][kind] for kind in ("open", "write", "sync", "rename")) > 10
    assert min(walk.counts["workers"].values()) > 10


def test_some_calls_fail_and_nothing_is_lost(walk):
    cases = walk.cases(random.Random(os.environ.get("POLYFED_FAULTS", "0")), DRAWN)
    assert {fault.kind for _, fault in cases} == set(KINDS)
    assert walk.bad(cases) == []


@pytest.mark.slow
def test_more_calls_fail_and_nothing_is_lost():
    """In a process of its own: a fork of one that has run browsers, Ray and threads may hang for reasons of theirs."""
    line = [sys.executable, faults.__file__, "--cases", str(MORE), "--seed", os.environ.get("POLYFED_FAULTS", "1")]
    done = subprocess.run(line, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"in {MORE} cases: {MORE} survived, 0 bad" in done.stdout


@pytest.mark.parametrize(("way", "left"), [("error", b"firstsecond"), ("short", b"first")])
def test_a_write_fails_below_the_buffers(tmp_path, way, left):
    """An error that passes leaves the buffer to be written at the end; a disk that is full stays full."""
    tally, path = Tally(Fault("write", 2, way)), tmp_path / "file"
    pid = os.fork()
    if pid == 0:
        install(tally)
        try:
            with path.open("wb") as file:
                file.write(b"first")
                file.flush()
                file.write(b"second")
                file.flush()
        except OSError as error:
            os._exit(error.errno)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert os.strerror(code) == {"error": "Input/output error", "short": "No space left on device"}[way]
    assert path.read_bytes() == (left if way == "error" else left + b"sec")
    assert tally.met
