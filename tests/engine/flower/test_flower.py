"""Flower's simulation on Ray: the same bits as the local engine, the same answers to what goes wrong."""

import importlib.util
import json
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load

import masked
import polyfed
from killing import wait_for
from polyfed.config import make_config
from polyfed.engine.flower import need_flower
from polyfed.engine.flower.engine import Flower
from polyfed.engine.start import newest_model
from polyfed.engine.work import Job, Outcome, World
from polyfed.errors import Interrupted, RunFailed, UsageError
from polyfed.message import Memory, Message

pytestmark = pytest.mark.extras

if importlib.util.find_spec("flwr") is None:
    pytest.skip("flwr is not installed", allow_module_level=True)

ENGINE = {"engine": {"name": "flower"}}
METHODS = {
    "fedavg": {},
    "fedper": {},
    "scaffold": {},
    "map": {},
    "fedcrc": {},
    "mupfl": {"method.tau": 1.0},
    "distfl": {"method.steps": 3, "method.warmup_rounds": 1, "method.threshold": 1e-9},
    "ecl": {},
    "lg-fedavg": {},
    "pfedme": {},
    "per-fedavg": {},
    "fedproto": {},
    "fedrod": {},
    "lws": {},
    "tau-norm": {},
    "fedafa": {},
    "flda": {},
    "pfedla": {},
    "fednova": {},
    "fedopt": {"method.server": "yogi"},
    "feddyn": {},
    "moon": {},
    "fedmmd": {},
    "feddf": {"split.public": 10, "method.steps": 5},
    "fedaws": {},
    "fedlc": {},
}


@pytest.fixture(scope="module")
def crew():
    """One simulation for all tests that do not break it."""
    opened = Flower().open()
    yield opened
    opened.close()


@pytest.fixture
def pair(trial):
    """The keys of an experiment on the local engine, and on Flower's."""

    def keys(changes):
        local = trial.keys(changes)
        return local, {k: v for k, v in local.items() if not k.startswith("engine.")} | ENGINE

    return keys


# ---- the adapter alone


def test_jobs_and_outcomes_survive_the_records_bit_for_bit():
    from polyfed.engine.flower.records import job_from_records, job_to_records, outcome_from_records, outcome_to_records

    down = Message(w=torch.randn(5), ids=torch.tensor([3, 1]), empty=torch.empty(0, 2), lam=0.1, k=7)
    job = Job("train", 3, 2, down, None, ("selected",), per_class=9)
    back, order = job_from_records(job_to_records(job, {"config": "a: 1"}))
    assert order == {"config": "a: 1"}
    assert (back.kind, back.client, back.round, back.version, back.measures) == ("train", 3, 2, None, ("selected",))
    assert back.per_class == 9
    assert back.down.encode() == down.encode()
    assert isinstance(back.down.k, int)
    counts = {"personal": np.arange(4).reshape(2, 2)}
    outcome = Outcome(3, down, b"never sent", "abc", {"n": 4, "name": "a", "shape": [1, 8]}, counts, "e", "t")
    found = outcome_from_records(outcome_to_records(outcome))
    assert found.memory is None, "a memory stays where it was made"
    assert found.up.encode() == down.encode()
    assert (found.digest, found.numbers, found.error, found.trace) == ("abc", outcome.numbers, "e", "t")
    assert (found.counts["personal"] == counts["personal"]).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32])
def test_a_message_carries_float32_and_int64_only(dtype):
    from polyfed.engine.flower.records import job_from_records, job_to_records

    records = job_to_records(Job("train", 0, 1, Message(w=torch.ones(2, dtype=dtype))), {})
    with pytest.raises(ValueError, match="a message carries float32 and int64"):
        job_from_records(records)


def test_the_engine_says_which_extra_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'polyfed\[flower\]'"):
        need_flower()


def test_importing_polyfed_imports_neither_flower_nor_ray():
    code = "import polyfed.api, sys; print([m for m in ('flwr', 'ray') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_programs_of_server_and_site_start_without_torch():
    """They pass messages on; sites are small machines, and torch is what takes memory and time."""
    parts = [f"polyfed.engine.flower.deploy.{part}" for part in ("processes", "guard", "superlink", "supernode")]
    code = f"import sys, {', '.join(parts)}; print([m for m in ('torch', 'sklearn', 'ray') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("method", "own_obstacle"), [("fedavg", False), ("distfl", True)])
def test_secure_aggregation_is_refused_in_one_sentence(method, own_obstacle):
    from polyfed.engine.flower.engine import refuse_secagg

    world = World(make_config({"method": method, "data": {"name": "digits", "limit": 5}}))
    with pytest.raises(UsageError, match="only for its legacy fit API") as refusal:
        refuse_secagg(world.method)
    assert ("needs more than sums" in str(refusal.value)) == own_obstacle


def test_telemetry_is_off_before_anything_of_flower_is_imported():
    code = (
        "import os; from polyfed.engine.flower import need_flower; need_flower();"
        "import flwr.supercore.telemetry as t; print(t.FLWR_TELEMETRY_ENABLED, os.environ['RAY_USAGE_STATS_ENABLED'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "0"]


def test_a_machine_too_small_for_a_client_is_told_in_one_sentence():
    from polyfed.engine.flower.simulation import need_room

    machines = [{"Resources": {"CPU": 2.0}}, {"Resources": {}}]
    need_room(Flower(cpus=2), machines)
    for engine in (Flower(cpus=3), Flower(gpus=1)):
        with pytest.raises(RunFailed, match=r"no machine of this Ray cluster.*engine\.cpus=.*engine\.gpus="):
            need_room(engine, machines)


# ---- the same bits


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_the_same_bits_as_the_local_engine(trial, pair, crew, method):
    local, flower = pair({"method.name": method} | METHODS[method])
    one = polyfed.run(local, out=trial.path())
    two = polyfed.run(flower, out=trial.path(), crew=crew)
    assert two.fingerprint == one.fingerprint
    for number in ("global", "personal", "personal_selected", "bytes", "failed", "rejected"):
        assert two[number] == one[number], number
    _in_play(method, two)


@pytest.mark.slow
def test_masks_have_the_same_bits_as_on_the_local_engine(trial, crew, tmp_path):
    data = {"name": "folder", "root": str(masked.folders(tmp_path, ("a", "b", "c"))), "classes": masked.CLASSES}
    method = {"name": "mupfl", "tau": 1.0, "match_steps": 5}
    keys = {"data": data, "model": "lraspp-small", "method": method, "rounds": 2, "train.batch": 4}
    one = polyfed.run(keys, {"engine.workers": 0}, out=trial.path())
    two = polyfed.run(keys, ENGINE, out=trial.path(), crew=crew)
    assert two.fingerprint == one.fingerprint
    for number in ("global", "personal", "bytes", "failed", "rejected"):
        assert two[number] == one[number], number


@pytest.mark.slow
@pytest.mark.parametrize("model", ["text-transformer", "text-bag"])
def test_texts_and_adapters_have_the_same_bits_as_on_the_local_engine(trial, crew, tmp_path, model):
    rows = [f"{'fine great' if at % 2 else 'poor late'} w{at % 7},{at % 2},c{at % 4}" for at in range(80)]
    (tmp_path / "texts.csv").write_text("\n".join(["text,label,client", *rows]) + "\n")
    data = {"name": "text", "file": str(tmp_path / "texts.csv"), "length": 4, "ids": 32}
    adapted = {"name": model, "width": 0.25, "lora": {"rank": 2}}
    keys = {"data": data, "model": adapted, "method": "fedlora", "rounds": 2, "train.batch": 10}
    one = polyfed.run(keys, {"engine.workers": 0}, out=trial.path())
    assert polyfed.run(keys, ENGINE, out=trial.path(), crew=crew).fingerprint == one.fingerprint


def _in_play(method, result):
    """What makes a method more than FedAvg has really happened."""
    if method == "distfl":
        assert re.search(r"round \d: [2-9] clusters", result.folder.log.read_text())
    if method == "mupfl":
        assert load(newest_model(result.path).read_bytes())["state.features"].abs().sum() > 0


@pytest.mark.slow
def test_a_run_of_one_engine_goes_on_with_the_other(trial, pair, crew, crews):
    local, flower = pair({"method.name": "map", "participation": 1.0})
    whole = polyfed.run(local, out=trial.path())
    for keys, inner, other in ((local, None, {"engine": "flower", "crew": crew}), (flower, crew, {"engine": "local"})):
        stop, path = crews.stop_at(10), trial.path()
        stop.inner = WithoutBreaths(inner) if inner else stop.inner
        with pytest.raises(Interrupted):
            polyfed.run(keys, out=path, crew=stop)
        assert 0 < polyfed.load(path).round < 3
        assert polyfed.resume(path, **other).fingerprint == whole.fingerprint


class WithoutBreaths:
    """A crew that gives outcomes only."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def run(self, *order):
        yield from (outcome for outcome in self.inner.run(*order) if outcome.client >= 0)


# ---- what goes wrong


@pytest.mark.slow
def test_a_client_that_raises_dies_or_is_late_costs_the_round_that_client_only(trial, pair, own, crew, tmp_path):
    """Raises; kills its actor, and is done again; sleeps beyond the deadline."""
    expected = {"raise": {"exception": 1}, "once": {}, "sleep": {"deadline": 1}}
    for how, failed in expected.items():
        changes = {"method.name": own("Failing"), "participation": 1.0, "method.how": how}
        _, flower = pair(changes | {"method.marker": str(tmp_path / how), "data.limit": 5})
        if how == "sleep":
            flower["engine"] = flower["engine"] | {"deadline": 30.0}
        result = polyfed.run(flower, out=trial.path(), crew=crew)
        assert result["failed"] == failed, how
        assert (tmp_path / how).read_text() == ("xx" if how == "once" else "x")
        times = [_times(result, k) for k in range(4)]
        assert times == ([3, 3, 3, 3] if how == "once" else [3, 2, 3, 3]), "no round counts twice"


def _times(result, client):
    """How often a client remembers to have taken part."""
    newest = max((result.path / "memory").glob(f"{client}-*"), key=lambda p: int(p.stem.split("-")[1]))
    return Memory.decode(newest.read_bytes()).times


@pytest.mark.slow
def test_the_command_line_prints_one_json_value_and_ends_with_its_actors(trial, pair, tmp_path):
    words = [*trial.words({"method.name": "fedper"}), "engine.name=flower"]
    words = [w for w in words if not w.startswith("engine.workers")]
    command = [sys.executable, "-m", "polyfed.cli", "run", *words, "--json", "--quiet", "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["method"] == "fedper"
    assert done.stderr == ""
    assert not list((tmp_path / "run").glob(".lease*"))


@pytest.mark.slow
def test_sigterm_in_the_middle_of_a_job_is_heard_and_the_run_can_go_on(trial, own, tmp_path):
    marker = tmp_path / "sleeps"
    changes = {"method.name": own("Failing"), "method.how": "sleep", "method.marker": marker, "participation": 1.0}
    words = [w for w in trial.words(changes) if not w.startswith("engine.")]
    command = [sys.executable, "-m", "polyfed.cli", "run", *words, "engine.name=flower", "--out", tmp_path / "run"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert wait_for(marker.exists, 120)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == Interrupted.exit_code, process.stderr.read()
    assert polyfed.load(tmp_path / "run").round == 1
