"""Checkpoints: written aside, synced, renamed; what is corrupt is found, said and passed over."""

import json
import os
import shutil
from importlib.metadata import version

import numpy as np
import pytest
import yaml

import polyfed
from polyfed.engine import checkpoint as checkpoint_module
from polyfed.engine.checkpoint import Checkpoints, Origin
from polyfed.engine.memory import MemoryStore
from polyfed.errors import DataError, Interrupted, UsageError
from trials import StopAfter


@pytest.fixture(scope="module")
def changes(own):
    return {"method.name": own("Counting"), "rounds": 6}


@pytest.fixture(scope="module")
def pristine(trial, changes):
    """A run with checkpoints after rounds 3 and 4 of 6."""
    run = trial.run(changes, watch=StopAfter(4))
    with pytest.raises(Interrupted):
        run.go()
    assert names(run.folder.path) == ["at-000003", "at-000004"]
    return run.folder.path


@pytest.fixture
def half(trial, pristine):
    """A copy of it, to be harmed."""
    return shutil.copytree(pristine, trial.path())


def names(path):
    return sorted(p.name for p in (path / "checkpoints").iterdir())


def log(path):
    return (path / "log.txt").read_text()


def cut_server(at):
    blob = (at / "server.safetensors").read_bytes()
    (at / "server.safetensors").write_bytes(blob[: len(blob) // 2])


def flip_server(at):
    blob = bytearray((at / "server.safetensors").read_bytes())
    blob[-5] ^= 1
    (at / "server.safetensors").write_bytes(blob)


def no_server(at):
    (at / "server.safetensors").unlink()


def garbage_head(at):
    (at / "head.json").write_bytes(os.urandom(100))


def foreign_head(at):
    (at / "head.json").write_text("[1, 2, 3]")


def numbers_in_head(at):
    (at / "head.json").write_text('{"sha256": 1, "head": 2}')


def changed_head(at):
    outer = json.loads((at / "head.json").read_text())
    outer["head"] = outer["head"].replace('"round": 4', '"round": 5')
    (at / "head.json").write_text(json.dumps(outer))


def empty(at):
    shutil.rmtree(at)
    at.mkdir()


def no_memory(at):
    """The memories of the newest version are gone."""
    folder = at.parents[1] / "memory"
    for path in folder.glob("*-4.safetensors"):
        path.unlink()


def cut_memory(at):
    folder = at.parents[1] / "memory"
    for path in folder.glob("*-4.safetensors"):
        path.write_bytes(path.read_bytes()[:100])


HARMS = [
    cut_server, flip_server, no_server, garbage_head, foreign_head, numbers_in_head, changed_head, empty, no_memory,
    cut_memory,
]  # fmt: skip


@pytest.mark.parametrize("harm", HARMS)
def test_a_corrupt_newest_checkpoint_falls_back_to_the_one_before_and_says_so(trial, changes, half, harm):
    harm(half / "checkpoints" / "at-000004")
    resumed = polyfed.resume(half)
    assert "checkpoint at-000004 is corrupt" in log(half)
    assert "resumed after round 3" in log(half)
    assert resumed.fingerprint == trial.kept(changes).fingerprint
    assert (half / "rounds.csv").read_bytes() == (trial.kept(changes).path / "rounds.csv").read_bytes()


def test_if_every_checkpoint_is_corrupt_the_run_is_refused(half):
    for at in (half / "checkpoints").iterdir():
        cut_server(at)
    before = {p: p.read_bytes() for p in half.rglob("*") if p.is_file() and p.name not in ("log.txt", "lock")}
    with pytest.raises(DataError, match=r"every checkpoint in .* is corrupt"):
        polyfed.resume(half)
    assert before == {p: p.read_bytes() for p in before}, "nothing is lost"


def test_a_whole_one_is_taken_as_it_is(trial, changes, half):
    resumed = polyfed.resume(half)
    assert "corrupt" not in log(half)
    assert "resumed after round 4" in log(half)
    assert resumed.fingerprint == trial.kept(changes).fingerprint


@pytest.mark.parametrize(("keep", "every", "left"), [(1, 1, [6]), (3, 1, [5, 6]), (4, 2, [2, 4, 6]), (2, 4, [6])])
def test_as_many_are_kept_as_asked_for(trial, changes, keep, every, left):
    path = trial(changes | {"checkpoint.keep": keep, "checkpoint.every": every}).path
    wanted = [f"at-{r:06d}" for r in left] + ["at-000006-finished"]
    assert names(path) == wanted[-keep:]
    assert len(wanted) >= keep


def test_every_kept_checkpoint_can_be_resumed_from(trial, changes, own):
    """Memory files are deleted only when no kept checkpoint needs them."""
    whole = trial(changes | {"checkpoint.keep": 100})
    for at in sorted((whole.path / "checkpoints").iterdir()):
        copy = trial.path()
        shutil.copytree(whole.path, copy)
        (copy / "summary.json").unlink()
        for other in (copy / "checkpoints").iterdir():
            if other.name > at.name:
                shutil.rmtree(other)
        assert polyfed.resume(copy).fingerprint == whole.fingerprint, at.name
        assert "corrupt" not in log(copy)


def test_the_memory_folder_holds_only_what_kept_checkpoints_need(half):
    needed = set()
    for at in (half / "checkpoints").iterdir():
        head = json.loads(json.loads((at / "head.json").read_text())["head"])
        needed |= {f"{client}-{version}.safetensors" for client, (version, _) in head["memory"].items()}
    assert {p.name for p in (half / "memory").iterdir()} == needed


def break_nth(monkeypatch, owner, name, nth):
    """The n-th call of a function from now on raises."""
    real, calls = getattr(owner, name), []

    def broken(*args, **kwargs):
        calls.append(args)
        if len(calls) == nth:
            raise OSError(5, "Input/output error")
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, broken)


@pytest.mark.parametrize(
    ("owner", "name", "nth"),
    [
        (os, "replace", 1),  # a memory file
        (os, "replace", 3),  # the server's file
        (os, "replace", 4),  # the head
        (os, "rename", 1),  # the checkpoint itself
        (os, "fsync", 2),
        (os, "fsync", 9),
        (checkpoint_module, "write_file", 2),
        (MemoryStore, "prune", 1),
    ],
)
def test_an_interrupted_save_leaves_the_older_checkpoints_valid(trial, changes, monkeypatch, owner, name, nth):
    class Breaker(StopAfter):
        def round(self, done, rounds, numbers):
            if done == self.at:
                break_nth(monkeypatch, owner, name, nth)

    run = trial.run(changes, watch=Breaker(2))
    with pytest.raises(OSError, match="Input/output"):
        run.go()
    monkeypatch.undo()
    assert "at-000002" in names(run.folder.path)
    assert polyfed.resume(run.folder.path).fingerprint == trial.kept(changes).fingerprint
    assert "corrupt" not in log(run.folder.path)


def test_what_is_written_aside_is_not_taken_for_a_checkpoint(half):
    shutil.copytree(half / "checkpoints" / "at-000003", half / "checkpoints" / ".at-000009.tmp")
    polyfed.resume(half)
    assert "resumed after round 4" in log(half)


def test_a_stale_memory_file_does_not_spoil_the_next_checkpoint(trial, changes, half):
    """A file of a later version, left by a sitting that was killed in the middle of saving, holds other bits."""
    for client in range(4):
        (half / "memory" / f"{client}-5.safetensors").write_bytes(b"other bits")
    run = polyfed.resume(half)
    assert run.fingerprint == trial.kept(changes).fingerprint
    assert "corrupt" not in log(half)
    copy = trial.path()
    shutil.copytree(half, copy)
    (copy / "summary.json").unlink()
    assert polyfed.resume(copy).fingerprint == run.fingerprint


def test_the_server_comes_back_with_its_state_and_numbers(trial, tmp_path):
    run = trial.run({})
    run.go()
    run.server.state.drift, run.server.state.count = run.server.shared.copy(), 7
    checkpoints = Checkpoints(tmp_path / "checkpoints", 1, Origin({"seed": 0}, "these clients"))
    checkpoints.save(run.progress, run.server, run.store, {"rounds": 11})
    other = trial.run({})
    other.prepare()
    progress, lengths = checkpoints.load(other.server, MemoryStore(tmp_path), pytest.fail)
    assert (progress, lengths) == (run.progress, {"rounds": 11})
    assert other.server.shared.digest() == run.server.shared.digest()
    assert other.server.state.drift.digest() == run.server.shared.digest()
    assert other.server.state.count == 7


# ---- whose it is


def edited(path, **keys):
    """A copy of a run with other values in its config file."""
    tree = yaml.safe_load((path / "config.yaml").read_text())
    for dotted, value in keys.items():
        *sections, last = dotted.split("__")
        section = tree
        for name in sections:
            section = section[name]
        section[last] = value
    (path / "config.yaml").write_text(yaml.safe_dump(tree))
    return path


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"seed": 7}, r"differs in seed \(0, now 7\), who takes part"),
        ({"train__lr": 0.5}, r"differs in train.lr \(0.05, now 0.5\)$"),
        ({"rounds": 9}, r"differs in rounds \(6, now 9\)$"),
        ({"participation": 1.0}, "participation"),
        ({"gate__norm": 10.0}, "gate.norm"),
        ({"train__schedule": {3: 0.1}}, r"train.schedule \(constant, now {'3': 0.1}\)"),
        ({"data__limit": 19}, r"data.limit \(20, now 19\), who takes part or holds how many samples"),
    ],
)
def test_a_checkpoint_of_another_experiment_is_refused_and_told_apart(half, changed, told):
    before = {p: p.read_bytes() for p in (half / "checkpoints").rglob("*") if p.is_file()}
    with pytest.raises(UsageError, match=told):
        polyfed.resume(edited(half, **changed))
    assert before == {p: p.read_bytes() for p in before}
    assert "corrupt" not in log(half), "it is whole, but another's"


def test_what_decides_no_bits_may_change(trial, changes, half):
    other = edited(half, eval__every=2, checkpoint__every=3, engine__quorum=0.1, device="cpu", tag="again")
    assert polyfed.resume(other).fingerprint == trial.kept(changes).fingerprint


def test_another_methods_checkpoint_is_refused(trial, changes, half):
    other = trial.run({**changes, "method.name": "fedavg"}, watch=StopAfter(2))
    with pytest.raises(Interrupted):
        other.go()
    shutil.rmtree(half / "checkpoints")
    shutil.copytree(other.folder.path / "checkpoints", half / "checkpoints")
    with pytest.raises(UsageError, match=r"differs in method.name \(fedavg, now .*Counting\)"):
        polyfed.resume(half)
    assert polyfed.resume(other.folder.path).summary["rounds"] == 6


def test_every_checkpoint_tells_config_version_and_federation(half):
    for at in (half / "checkpoints").iterdir():
        origin = json.loads(json.loads((at / "head.json").read_text())["head"])["origin"]
        assert (origin["config"]["seed"], origin["polyfed"]) == (0, version("polyfed"))
        assert "engine.workers" not in origin["config"]
        assert len(origin["federation"]) == len(origin["digest"]) == 64


def test_other_data_under_the_same_config_are_refused(trial, tmp_path):
    for name, n in (("a", 12), ("b", 15)):
        write_client(tmp_path / "data" / name, n)
    keys = {"data.name": "folder", "data.root": str(tmp_path / "data"), "data.limit": None, "split.partition": "users"}
    keys |= {"split.clients": None, "rounds": 3}
    config = {k: v for k, v in trial.keys(keys).items() if k != "split.alpha"}
    with pytest.raises(Interrupted):
        polyfed.run(config, out=tmp_path / "run", progress=StopAfter(1))
    shutil.copytree(tmp_path / "data", tmp_path / "moved")
    shutil.copytree(tmp_path / "data", tmp_path / "other")
    write_client(tmp_path / "other" / "b", 14)
    with pytest.raises(UsageError, match="this one differs in who takes part or holds how many samples"):
        polyfed.resume(edited(tmp_path / "run", data__root=str(tmp_path / "other")))
    assert polyfed.resume(edited(tmp_path / "run", data__root=str(tmp_path / "moved"))).summary["rounds"] == 3


def write_client(folder, n):
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "samples.npz", x=np.arange(n * 8, dtype=np.float32).reshape(n, 8), y=np.arange(n) % 3)
