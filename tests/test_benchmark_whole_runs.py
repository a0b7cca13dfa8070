"""Whole runs in the benchmarks: commands from start to end, and the arithmetic a method needs."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks import beside, startup, whole
from benchmarks.arithmetic import METHODS, STEP, Task, fedavg, shares, work
from benchmarks.cells import Cell
from benchmarks.measure import ROOT, Failed, Numbers, Side, compile_all, finished, started
from benchmarks.rivals import envs
from benchmarks.speed import computed

from polyfed.api import config_of

TREE: dict[str, Any] = {
    "method": "fedper",
    "data": {"name": "digits", "limit": 10},
    "model": "mlp",
    "split": {"clients": 3},
    "rounds": 2,
}


def silent(text: str) -> None:
    """Nobody listens."""


def python(code: str, *words: object) -> Side:
    """A process of some lines."""
    return Side([sys.executable, "-c", code, *map(str, words)])


# ---- commands


LEAVES = """
import json, pathlib, sys
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
for name in sys.argv[1].split(","):
    (out / name).mkdir(parents=True, exist_ok=True)
    summary = {"fingerprint": f"print of {name}", "seconds": {"total": 4.0, "train": 2.0}}
    (out / name / "summary.json").write_text(json.dumps(summary))
print("a table")
"""


def test_a_whole_command_is_its_wall_clock_and_what_it_left() -> None:
    run = whole.whole(python(LEAVES, "."))
    assert run["seconds"] > 0
    assert run["processor"] > 0
    assert run["phases"] == {"total": 4.0, "train": 2.0}
    assert run["fingerprints"] == {".": "print of ."}
    both = whole.whole(python(LEAVES, "b/0,a/0"))
    assert both["fingerprints"] == {"a/0": "print of a/0", "b/0": "print of b/0"}
    assert both["phases"] == {}
    with pytest.raises(Failed, match="without a result"):
        whole.whole(python("print('nothing')"))
    with pytest.raises(Failed, match="no such method"):
        whole.whole(python("import sys; sys.exit('polyfed: no such method')"))


def test_the_real_command_reads_the_config_that_was_written() -> None:
    """The command line is polyfed's own, and the file is a config."""
    with whole.written({"fedper": TREE}) as files:
        said, _ = finished(Side([*whole.polyfed("run").command, "--help"]))
        assert config_of(files["fedper"]).method.name == "fedper"
    assert "Run one experiment" in said


def test_client_work_is_a_share_of_what_comes_after_set_up() -> None:
    assert whole.client_share({"total": 10.0, "train": 4.0}) == 0.4
    phases = {"setup": 2.0, "train": 5.0, "server": 1.0, "eval": 0.5, "finish": 1.0, "checkpoint": 0.25, "report": 0.25}
    assert whole.client_share({**phases, "total": 10.0}) == 0.75


def measured_as(runs: dict[str, Callable[[int], Numbers]], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Instead of commands: what the last word of one finds here, by how often it was asked for; the words in order."""
    asked: list[str] = []

    def fake(side: Side) -> Numbers:
        name = Path(side.command[-1]).stem
        asked.append(name)
        return runs[name](asked.count(name))

    monkeypatch.setattr("benchmarks.whole.whole", fake)
    return asked


@pytest.mark.parametrize(("workers", "by", "ratio"), [(2, "the clock", 3.0), (0, "processor", 9.0)])
def test_a_run_is_measured_beside_fedavgs(
    workers: int, by: str, ratio: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In turns; the ratio is divided by what the method needs, which knows how often DistFL clustered."""

    def run(seconds: float, train: float, clusterings: int = 0) -> Callable[[int], Numbers]:
        rest = {"processor": seconds / train, "phases": {"total": 4.0, "train": train}, "clusterings": clusterings}
        return lambda number: {"seconds": seconds * number, **rest}

    given: list[dict[str, Any]] = []

    def needs(side: Side) -> Numbers:
        given.append(json.loads(side.command[-1]))
        return {"needs": 1.5}

    asked = measured_as({"fedavg": run(2.0, 3.0), "distfl": run(6.0, 1.0, 4)}, monkeypatch)
    monkeypatch.setattr("benchmarks.whole.once", needs)
    tree = {**TREE, "method": "distfl", "engine": {"name": "local", "workers": workers}}
    result = whole.measure(Cell("x", "whole", {"tree": tree}, repeats=2), tmp_path, [], silent)
    assert asked == ["fedavg", "distfl", "distfl", "fedavg"]
    assert result["by"] == by
    assert result["ratios"]["fedavg"]["median"] == pytest.approx(ratio)
    assert result["ratios"]["clock"]["median"] == 3.0
    assert result["ratios"]["arithmetic"]["median"] == pytest.approx(ratio / 1.5)
    assert result["shares"]["fedavg"]["median"] == 0.75
    assert given[0]["clusterings"] == 4
    json.dumps(result)


def test_a_comparison_must_give_the_same_whatever_jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cell = Cell("x", "comparison", {"tree": {"methods": ["fedavg"], "seeds": 2}}, repeats=1)
    prints = {"fedavg/0": "a", "fedavg/1": "b"}

    def run(seconds: float, found: dict[str, str]) -> Callable[[int], Numbers]:
        return lambda number: {"seconds": seconds, "fingerprints": found}

    asked = measured_as({"jobs=auto": run(2.0, prints), "jobs=1": run(3.0, prints)}, monkeypatch)
    result = whole.measure_comparison(cell, tmp_path, [], silent)
    assert asked == ["jobs=auto", "jobs=1"]
    assert result["ratios"]["jobs"]["median"] == 1.5
    assert result["runs"] == 2
    for other in ({**prints, "fedavg/1": "c"}, {"fedavg/0": "a"}):
        measured_as({"jobs=auto": run(2.0, other), "jobs=1": run(3.0, prints)}, monkeypatch)
        with pytest.raises(Failed, match="other fingerprints"):
            whole.measure_comparison(cell, tmp_path, [], silent)


# ---- arithmetic

COUNTS = ((30, 10), (20, 0))
TASK = Task(rounds=10, epochs=2, counts=COUNTS, last=0.25, head=0.01, clusterings=2)


def times(method: str, **settings: Any) -> float:
    """What a method needs, times FedAvg."""
    return METHODS[method](TASK, SimpleNamespace(**settings)) / fedavg(TASK)


def test_the_unit_is_a_forward_pass() -> None:
    assert fedavg(TASK) == 10 * 60 * 2 * STEP
    assert times("fedavg") == times("fedper") == 1


def test_what_each_method_needs() -> None:
    """By hand: 6 passes a sample and round are FedAvg's."""
    assert times("ditto", personal_epochs=None) == 2
    assert times("ditto", personal_epochs=1) == 1.5
    assert times("fedrep", head_epochs=None, body_epochs=1.0) == pytest.approx((1 + 3 * 1.01) / 6)
    assert times("fedcrc", epochs=None) == pytest.approx((6 + 1 + 3 * 0.01 * 4) / 6)
    assert times("map", split=0.5) == pytest.approx(7 / 6)
    experts = 60 + 3 * 10 * (60 * 0.01 + 60 * 0.01 + 30 * 0.25)  # the second client has only one class: a tail
    assert times("ecl", experts=2, phase2_epochs=10) == pytest.approx(1 + experts / 3600)
    assert times("distfl", z=10, steps=5) == pytest.approx(1 + 2 * (10 * (5 * 3 + 2) + 60) / 3600)
    tuning = 2 * 4 * 3 * 0.01 * 5 * 2  # clients, epochs, a step of the head, features of two classes
    settings = {"draws": 1, "b_real": 15, "tau": 4, "m": 5}
    assert times("mupfl", **settings) == pytest.approx(1.1 + 10 * (30 + 15 + tuning) / 3600)


def test_shares_of_a_network() -> None:
    last, head = shares(config_of(model="mlp").model.build((1, 8, 8), 10), (1, 8, 8))
    assert 0 < head < last < 1


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_known_by_its_own_settings(method: str) -> None:
    needs = work({"tree": {**TREE, "method": method}, "clusterings": 1})["needs"]
    assert 0.5 < needs < 100
    assert needs == 1 or method not in ("fedavg", "fedper")


# ---- start-up


def test_the_first_round_begins_when_the_log_says_so() -> None:
    code = """
import pathlib, sys, time
log = pathlib.Path(sys.argv[sys.argv.index("--out") + 1]) / "log.txt"
log.parent.mkdir()
log.write_text("begins: method fedavg, seed 0")
time.sleep(60)
"""
    assert 0 < startup.first_round(python(code))["seconds"] < 50
    with pytest.raises(Failed, match="no data"):
        startup.first_round(python("import sys; sys.exit('no data')"))
    assert 0 < startup.first_word(python("import time; print('here', flush=True); time.sleep(60)"))["seconds"] < 50
    with pytest.raises(Failed, match="no torch"):
        startup.first_word(python("import sys; sys.exit('no torch')"))


# ---- rivals


def test_fedavg_beside_rivals_that_are_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A rival that cannot be installed, and one that breaks, are named; polyfed is measured all the same."""

    def environment(rival: str) -> Path:
        if rival == "pfl":
            raise Failed("cannot be installed: no network")
        return tmp_path

    def rival(side: Side) -> tuple[str, Numbers]:
        if "benchmarks.rivals.flower_example" in side.command:
            raise Failed("out of memory")
        assert "--whole" in side.command
        return "", {"seconds": 6.0}

    for module in ("speed", "beside"):
        monkeypatch.setattr(f"benchmarks.{module}.environment", environment)
    monkeypatch.setattr("benchmarks.beside.once", lambda side: {"task": "task.json"})
    monkeypatch.setattr("benchmarks.beside.finished", rival)
    monkeypatch.setattr("benchmarks.beside.whole", lambda side: {"seconds": 2.0})
    cell = Cell("x", "beside", {"tree": {**TREE, "method": "fedavg"}}, repeats=1)
    result = beside.measure(cell, tmp_path, ["pfl", "flower"], silent)
    assert result["ratios"]["flower"]["median"] == 3.0
    assert result["failed"] == {"pfl": "cannot be installed: no network", "flower example": "it stopped"}


def test_a_rival_is_installed_once_or_given_up_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A half-made environment is made again; without a network it is not tried for every cell."""
    ran: list[list[str]] = []
    python_there = tmp_path / "pfl" / "bin" / "python"

    def made(command: list[str]) -> None:
        ran.append(command)
        python_there.parent.mkdir(parents=True, exist_ok=True)
        python_there.touch()

    monkeypatch.setattr(envs, "ENVS", tmp_path)
    monkeypatch.setattr(envs, "_hopeless", {})
    monkeypatch.setattr(envs, "_run", made)
    assert envs.environment("pfl") == envs.environment("pfl") == python_there.parent
    assert [command[2] for command in ran] == ["venv", "pip"]
    python_there.unlink()  # the stamp is there, the interpreter is not
    envs.environment("pfl")
    assert len(ran) == 4
    (tmp_path / "pfl" / "ready").unlink()
    monkeypatch.undo()
    monkeypatch.setattr(envs, "ENVS", tmp_path)
    monkeypatch.setattr(envs, "_hopeless", {})
    monkeypatch.setattr(envs.sys, "executable", str(tmp_path / "no-python"))
    for _ in range(2):
        with pytest.raises(Failed, match=r"cannot be installed: .*no-python"):
            envs.environment("pfl")
        monkeypatch.setattr(envs, "_run", lambda command: pytest.fail("tried again"))


# ---- other machines


def test_programs_that_cannot_start_and_words_that_are_no_text() -> None:
    with pytest.raises(Failed, match="no-such-program cannot be started"):
        finished(Side(["/no-such-program"]))
    with pytest.raises(Failed, match="bad \ufffd byte"):
        finished(python(r"import sys; sys.stderr.buffer.write(b'bad \xff byte'); sys.exit(1)"))


def test_without_proc_there_is_no_processor_time() -> None:
    assert math.isnan(computed({"samples": 3, "cpu": 0.0}))
    assert computed({"samples": 3, "cpu": 2.0}) == 1.5


def test_what_is_measured_lies_here() -> None:
    """Not another installation of polyfed that the interpreter may know."""
    said, _ = finished(python("import benchmarks, polyfed; print(polyfed.__file__)"))
    assert Path(said.strip()).is_relative_to(ROOT / "src")


def test_what_is_measured_has_its_bytecode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the environment forbids to write any, too: else every process would compile all that it imports."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    said, _ = finished(python("import sys; print(sys.dont_write_bytecode)"))
    assert said.strip() == "False"
    folders: list[Path] = []
    imported: list[str] = []
    monkeypatch.setattr("compileall.compile_dir", lambda folder, quiet: folders.append(folder))
    monkeypatch.setattr("subprocess.run", lambda command, **given: imported.append(command[-1]))
    compile_all()
    assert folders == [ROOT / "src"]
    assert imported[0].startswith("import polyfed.api, polyfed.report.page")


SLEEPS = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
STOPPED = f"""
import sys
child = sys.argv.pop()
import benchmarks.__main__ as command
from benchmarks.measure import Side, finished

command.others = lambda: 0.0
command.compile_all = lambda: None
command.KINDS["startup"] = lambda *given: finished(Side([sys.executable, "-c", {SLEEPS!r}, child]))
command.call()
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_stopped_midway_it_says_a_sentence(number: signal.Signals, tmp_path: Path) -> None:
    """Nothing stays behind, not the process that was being measured either."""
    child = tmp_path / "child"
    words = ["--full", "--only", "whole start", "--out", str(tmp_path / "out"), str(child)]
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED, *words], cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while not child.is_file() or not child.read_text():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said.splitlines()[-1] == "stopped; what is finished is kept, the same command goes on"
    assert "Traceback" not in said
    with pytest.raises(ProcessLookupError):
        os.kill(int(child.read_text()), 0)


def test_started_is_a_group_of_its_own() -> None:
    """So that a stop in the terminal reaches the command first, which then cleans up."""
    with open(os.devnull, "w") as words:
        process = started(python("import time; time.sleep(60)"), words)
    assert os.getpgid(process.pid) == process.pid
    process.kill()
    process.wait()
