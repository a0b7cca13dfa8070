"""Nothing executes on load: code that a run names runs only if this user ran it here, or if it is trusted."""

import json
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import polyfed
from polyfed import outside
from polyfed.engine import trust
from polyfed.errors import DataError
from polyfed.registry import registries

METHOD = """
from pathlib import Path
from polyfed.methods import Method
from ours_for_test_beside import SCALE

(Path(__file__).parent / "ran").touch()

class Mine(Method):
    pass
"""
MODEL = """
from pathlib import Path
from torch import nn

(Path(__file__).parent / "ran").touch()

class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.all = nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))

    def forward(self, x):
        return self.all(x)
"""
REFUSED = "names code outside polyfed"


def forget() -> None:
    """As in a process that has run nothing yet."""
    for registry in registries.values():
        registry._specs = {name: spec for name, spec in registry._specs.items() if ":" not in name}
    outside._admitted.clear()
    for name in [name for name in sys.modules if name.startswith(("polyfed_user_", "ours_for_test"))]:
        del sys.modules[name]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    kept = {kind: dict(registry._specs) for kind, registry in registries.items()}
    yield
    forget()
    for kind, specs in kept.items():
        registries[kind]._specs = specs


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A folder with a method and a model of the user's own; each leaves a file named ran where it is executed."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine.py").write_text(METHOD)
    (tmp_path / "code" / "net.py").write_text(MODEL)
    (tmp_path / "code" / "ours_for_test_beside.py").write_text("SCALE = 3\n")
    return tmp_path / "code"


@pytest.fixture
def rows(tmp_path: Path) -> str:
    np.save(tmp_path / "rows.npy", np.zeros((2, 8, 8), np.uint8))
    return str(tmp_path / "rows.npy")


@pytest.fixture
def evil(tmp_path: Path, tiny: dict[str, Any], code: Path) -> Path:
    """A finished run that an attacker made to name a file which lies in it."""
    run = polyfed.run(tiny, out=tmp_path / "evil").path
    shutil.copy(code / "mine.py", run / "evil.py")
    shutil.copy(code / "ours_for_test_beside.py", run)
    shutil.copy(code / "net.py", run / "evil_net.py")
    return run


def names(run: Path, **sections: Any) -> None:
    """Write other names into the config of a run."""
    tree = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump(tree | sections))


def ran(folder: Path) -> bool:
    return (folder / "ran").exists()


def commands(run: Path, rows: str) -> dict[str, list[str]]:
    return {
        "predict": ["predict", str(run), "--global", "--input", rows],
        "export": ["export", str(run), "--global"],
        "resume": ["resume", str(run), "--quiet"],
    }


SECTIONS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "method": lambda run: {"method": {"name": f"{run}/evil.py:Mine"}},
    "base": lambda run: {"method": {"name": "fedavg-ft", "base": {"name": f"{run}/evil.py:Mine"}}},
    "model": lambda run: {"model": {"name": f"{run}/evil_net.py:Net"}},
    "data": lambda run: {"data": {"name": f"{run}/evil.py:Data"}},
    "partition": lambda run: {"split": {"partition": f"{run}/evil.py:Partition"}},
    "engine": lambda run: {"engine": {"name": f"{run}/evil.py:Engine"}},
    "track": lambda run: {"track": {"name": f"{run}/evil.py:Track"}},
}


@pytest.mark.parametrize("command", ["predict", "export", "resume"])
@pytest.mark.parametrize("section", SECTIONS)
def test_a_run_made_to_name_code_does_not_execute_it(
    section: str, command: str, evil: Path, rows: str, cli: Any
) -> None:
    (evil / "summary.json").unlink()
    names(evil, **SECTIONS[section](evil))
    said = cli(*commands(evil, rows)[command])
    assert (said.code, said.err.count("\n")) == (3, 1), said
    for words in (REFUSED, f"{evil}/evil", "--trust"):
        assert words in said.err
    assert not ran(evil)


@pytest.mark.parametrize("command", ["predict", "export"])
def test_a_finished_run_does_not_execute_it_either(command: str, evil: Path, rows: str, cli: Any) -> None:
    names(evil, **SECTIONS["method"](evil))
    said = cli(*commands(evil, rows)[command])
    assert (said.code, REFUSED in said.err) == (3, True), said
    assert not ran(evil)


@pytest.mark.parametrize("command", ["show", "report", "resume"])
def test_what_only_reads_a_run_executes_nothing(command: str, evil: Path, cli: Any) -> None:
    names(evil, **SECTIONS["method"](evil))
    assert cli(command, str(evil), "--quiet").code == 0
    assert not ran(evil)


def test_init_executes_nothing_of_the_run(evil: Path, tiny_words: list[str], cli: Any) -> None:
    names(evil, **SECTIONS["method"](evil))
    said = cli("run", *tiny_words, f"init={evil}", "--quiet")
    assert said.code == 0, said
    said = cli("run", *tiny_words, "method=fedavg-ft", f"init={evil}", "--quiet")
    assert (said.code, "is not this phase one: method.name (" in said.err) == (2, True), said
    assert not ran(evil)


@pytest.mark.parametrize("command", ["resume", "show", "report"])
def test_a_comparison_made_to_name_code_does_not_execute_it(
    command: str, code: Path, tiny: dict[str, Any], tmp_path: Path, cli: Any
) -> None:
    made = polyfed.compare(tiny, methods=["fedavg"], seeds=1, out=tmp_path / "c")
    tree = yaml.safe_load((made.path / "comparison.yaml").read_text())
    (made.path / "comparison.yaml").write_text(yaml.safe_dump(tree | {"methods": ["fedavg", f"{code}/mine.py:Mine"]}))
    said = cli(command, str(made.path), "--quiet")
    assert (said.code, REFUSED in said.err) == ((3, True) if command == "resume" else (0, False)), said
    assert not ran(code)


def test_a_module_that_is_installed_is_outside_too(
    evil: Path, code: Path, rows: str, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asking for the module would already execute the package around it."""
    monkeypatch.syspath_prepend(code)
    (code / "ours_for_test").mkdir()
    (code / "mine.py").rename(code / "ours_for_test" / "__init__.py")
    (code / "ours_for_test" / "inner.py").write_text(METHOD)
    for name in ("ours_for_test:Mine", "ours_for_test.inner:Mine", "os:abort", "polyfed.cli:main", "sys:exit"):
        for section in ("method", "model"):
            names(
                evil, **{"method": {"name": "fedavg"}, "model": {"name": "mlp", "width": 0.1}, section: {"name": name}}
            )
            said = cli(*commands(evil, rows)["predict"])
            assert (said.code, REFUSED in said.err) == (3, True), (name, said)
    assert not ran(code / "ours_for_test")


@pytest.mark.parametrize("name", ["polyfed.methods.evil.py", "polyfed.methods./../evil.py", "polyfed.methods/evil.py"])
def test_a_file_that_is_named_like_ours_is_outside_too(
    name: str, evil: Path, rows: str, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(evil)
    (evil / "polyfed.methods").mkdir()
    for place in ("polyfed.methods.evil.py", "polyfed.methods/evil.py"):
        shutil.copy(evil / "evil.py", evil / place)
    names(evil, method={"name": f"{name}:Mine"})
    said = cli(*commands(evil, rows)["predict"])
    assert (said.code, REFUSED in said.err) == (3, True), said
    assert not ran(evil)
    assert not ran(evil / "polyfed.methods")


PLACES: dict[str, Any] = {
    "a cluster": {"engine": {"name": "flower", "address": "stranger.example:6379"}},
    "a folder": {"track": {"name": "tensorboard", "dir": "/stranger"}},
}


@pytest.mark.parametrize("place", PLACES)
def test_a_run_does_not_lead_elsewhere(place: str, evil: Path, tmp_path: Path, tiny: dict[str, Any], cli: Any) -> None:
    """Whoever joins a cluster executes what it sends; a tracker would write where it is told."""
    (evil / "summary.json").unlink()
    names(evil, **PLACES[place])
    said = cli("resume", str(evil), "--quiet")
    assert (said.code, said.err.count("\n"), "--trust" in said.err) == (3, 1, True), said
    assert "stranger" in said.err
    if place == "a cluster":
        assert cli("resume", str(evil), "--quiet", "engine=local", "engine.workers=0").code == 0


def test_a_folder_that_this_user_named_is_used_again(tmp_path: Path, tiny: dict[str, Any], cli: Any) -> None:
    run = polyfed.run(tiny, track={"name": "tensorboard", "dir": tmp_path / "events"}, out=tmp_path / "run").path
    (run / "summary.json").unlink()
    assert cli("resume", str(run), "--quiet").code == 0
    names(run, track={"name": "tensorboard", "dir": str(tmp_path / "others")})
    (run / "summary.json").unlink()
    assert cli("resume", str(run), "--quiet").code == 3
    assert not (tmp_path / "others").exists()


# ---- what was made here


@pytest.fixture
def mine(tmp_path: Path, tiny: dict[str, Any], code: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with a method and a model of this user's own, named from the folder they lie in."""
    monkeypatch.chdir(code)
    keys = {key: value for key, value in tiny.items() if not key.startswith("model")}
    made = polyfed.run(keys, method="mine.py:Mine", model=f"{code}/net.py:Net", out=tmp_path / "run").path
    forget()
    (code / "ran").unlink()
    return made


@pytest.mark.parametrize("command", ["predict", "export", "resume"])
def test_what_this_user_ran_here_runs_again(command: str, mine: Path, code: Path, rows: str, cli: Any) -> None:
    (mine / "summary.json").unlink()
    said = cli(*commands(mine, rows)[command])
    assert said.code == 0, said
    assert ran(code)


def test_a_run_says_what_code_it_ran(mine: Path, code: Path) -> None:
    note = json.loads((mine / "code.json").read_text())
    assert note["code"] == {
        "mine.py:Mine": outside.find(f"{code}/mine.py").files,
        f"{code}/net.py:Net": outside.find(f"{code}/net.py").files,
    }


def test_a_run_without_own_code_keeps_no_note(tmp_path: Path, tiny: dict[str, Any]) -> None:
    assert "code.json" not in os.listdir(polyfed.run(tiny, out=tmp_path / "run").path)


def elsewhere(run: Path, code: Path) -> Path:
    """The run is copied to another place."""
    return Path(shutil.copytree(run, run.parent / "copy"))


def changed_code(run: Path, code: Path) -> Path:
    (code / "mine.py").write_text(METHOD + "\n# one more line\n")
    return run


def changed_code_beside(run: Path, code: Path) -> Path:
    """The file that the method's own file imports is code that runs, too."""
    (code / "ours_for_test_beside.py").write_text("SCALE = 4\n")
    return run


def code_of_another_folder(run: Path, code: Path) -> Path:
    """`mine.py` is found from where one is: here lies another file with the same bytes."""
    (run.parent / "other").mkdir()
    shutil.copy(code / "mine.py", run.parent / "other")
    shutil.copy(code / "ours_for_test_beside.py", run.parent / "other")
    os.chdir(run.parent / "other")
    return run


def changed_config(run: Path, code: Path) -> Path:
    names(run, seed=5)
    return run


def other_code_in_the_note(run: Path, code: Path) -> Path:
    """The attacker writes the hash of another file into the note."""
    (code / "mine.py").write_text(METHOD + "\n# evil\n")
    note = json.loads((run / "code.json").read_text())
    note["code"]["mine.py:Mine"] = outside.find(f"{code}/mine.py").files
    (run / "code.json").write_text(json.dumps(note))
    return run


def sealed_by_another_user(run: Path, code: Path) -> Path:
    (trust.state() / "secret").rename(trust.state() / "secret-of-another")
    (trust.state() / "secret").write_bytes(b"x" * 32)
    (trust.state() / "secret").chmod(0o600)
    return run


def no_secret(run: Path, code: Path) -> Path:
    (trust.state() / "secret").rename(trust.state() / "secret-of-another")
    return run


def no_note(run: Path, code: Path) -> Path:
    (run / "code.json").unlink()
    return run


def a_linked_note(run: Path, code: Path) -> Path:
    shutil.move(run / "code.json", run.parent)
    (run / "code.json").symlink_to(run.parent / "code.json")
    return run


def a_note_of_wrong_types(run: Path, code: Path) -> Path:
    (run / "code.json").write_text('["folder"]')
    return run


DOUBTS = {
    elsewhere: "and lies elsewhere now",
    changed_code: "mine.py' has changed since",
    changed_code_beside: "ours_for_test_beside.py' has changed since",
    code_of_another_folder: "what ran was",
    changed_config: "its config.yaml has changed since it was made",
    other_code_in_the_note: "was not made here by this user",
    sealed_by_another_user: "was not made here by this user",
    no_secret: "was not made here by this user",
    no_note: "was not made here by this user",
    a_linked_note: "is a link",
    a_note_of_wrong_types: "was not made here by this user",
}


@pytest.fixture
def secret_again() -> Iterator[None]:
    yield
    kept = trust.state() / "secret-of-another"
    if kept.exists():
        kept.replace(trust.state() / "secret")


@pytest.mark.usefixtures("secret_again")
@pytest.mark.parametrize("doubt", DOUBTS, ids=[doubt.__name__ for doubt in DOUBTS])
def test_what_is_not_as_it_was_is_not_executed(
    doubt: Callable[[Path, Path], Path], mine: Path, code: Path, rows: str, cli: Any
) -> None:
    run = doubt(mine, code)
    said = cli("predict", str(run), "--global", "--input", rows)
    assert (said.code, DOUBTS[doubt] in said.err, said.err.count("\n")) == (3, True, 1), said
    assert not ran(code)


@pytest.mark.parametrize("command", ["predict", "export", "resume"])
def test_trust_executes_it(command: str, mine: Path, code: Path, rows: str, cli: Any) -> None:
    (mine / "summary.json").unlink()
    copy = elsewhere(mine, code)
    assert cli(*commands(copy, rows)[command]).code == 3
    said = cli(*commands(copy, rows)[command], "--trust")
    assert said.code == 0, said
    assert ran(code)


def test_trust_in_python(mine: Path, code: Path) -> None:
    copy = polyfed.load(elsewhere(mine, code))
    for ask in (copy.global_model, lambda **k: copy.client(0, **k), lambda **k: copy.export("safetensors", **k)):
        forget()
        with pytest.raises(DataError, match="trust=True"):
            ask()
        ask(trust=True)


def test_an_exported_model_with_own_code_wants_trust(mine: Path, code: Path, rows: str, cli: Any) -> None:
    assert cli("export", str(mine), "--global", "--out", str(mine.parent / "shipped")).code == 0
    forget()
    (code / "ran").unlink()
    words = ["predict", str(mine.parent / "shipped"), "--input", rows]
    said = cli(*words)
    assert (said.code, "--trust" in said.err, ran(code)) == (3, True, False), said
    assert cli(*words, "--trust").code == 0


def test_a_class_given_from_python_is_known_again(
    tmp_path: Path, tiny: dict[str, Any], code: Path, rows: str, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(code)
    (code / "mine.py").rename(code / "ours_for_test.py")
    import ours_for_test  # type: ignore[import-not-found]

    run = polyfed.run(tiny, method=ours_for_test.Mine, out=tmp_path / "run").path
    forget()
    (code / "ran").unlink()
    assert cli("predict", str(run), "--global", "--input", rows).code == 0
    assert ran(code)
    forget()
    (code / "ours_for_test.py").write_text(METHOD + "\n# more\n")
    said = cli("predict", str(run), "--global", "--input", rows)
    assert (said.code, "has changed since" in said.err) == (3, True), said


def test_a_comparison_goes_on_with_own_code(tmp_path: Path, tiny: dict[str, Any], code: Path, cli: Any) -> None:
    made = polyfed.compare(tiny, methods=["fedavg", f"{code}/mine.py:Mine"], seeds=1, out=tmp_path / "c")
    for summary in made.path.glob("*/summary.json"):
        summary.unlink()
    copy = shutil.copytree(made.path, tmp_path / "copy")
    forget()
    (code / "ran").unlink()
    said = cli("resume", str(copy), "--quiet")
    assert (said.code, REFUSED in said.err, ran(code)) == (3, True, False), said
    assert cli("resume", str(made.path), "--quiet").code == 0
    forget()
    assert cli("resume", str(copy), "--quiet", "--trust").code == 0


def test_what_runs_is_what_was_hashed(mine: Path, code: Path, rows: str, cli: Any) -> None:
    """A cache beside the file, with the time and the size of the file, holds other code: it is not what runs."""
    import importlib.util
    import py_compile

    before = (code / "mine.py").stat()
    evil = METHOD.replace('"ran"', '"bad"')
    (code / "mine.py").write_text(evil)
    os.utime(code / "mine.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    py_compile.compile(str(code / "mine.py"), importlib.util.cache_from_source(str(code / "mine.py")))
    (code / "mine.py").write_text(METHOD)
    os.utime(code / "mine.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert cli("predict", str(mine), "--global", "--input", rows).code == 0
    assert not (code / "bad").exists()


# ---- the secret


@pytest.fixture
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "own" / "state"))
    return tmp_path / "own" / "state" / "polyfed"


def test_the_secret_is_made_for_this_user_alone(own_state: Path) -> None:
    first = trust._secret(make=True)
    assert len(first) == 32
    assert stat.S_IMODE((own_state / "secret").stat().st_mode) == 0o600
    assert stat.S_IMODE(own_state.stat().st_mode) == 0o700
    assert trust._secret(make=True) == trust._secret(make=False) == first
    trust._make(own_state / "secret")  # as if another process had been faster
    assert trust._secret(make=False) == first
    assert os.listdir(own_state) == ["secret"]


@pytest.mark.parametrize("spoil", ["readable", "short", "linked"])
def test_a_secret_that_others_may_know_is_refused(spoil: str, own_state: Path, tmp_path: Path) -> None:
    trust._secret(make=True)
    if spoil == "readable":
        (own_state / "secret").chmod(0o640)
    elif spoil == "short":
        (own_state / "secret").write_bytes(b"x")
    else:
        (own_state / "secret").rename(tmp_path / "secret")
        (own_state / "secret").symlink_to(tmp_path / "secret")
    with pytest.raises((DataError, OSError)):
        trust._secret(make=False)


def test_where_no_secret_can_be_kept_a_run_is_made_and_not_trusted_later(
    tmp_path: Path, tiny: dict[str, Any], code: Path, rows: str, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    run = polyfed.run(tiny, method=f"{code}/mine.py:Mine", out=tmp_path / "run").path
    forget()
    said = cli("predict", str(run), "--global", "--input", rows)
    assert (said.code, "was not made here by this user" in said.err) == (3, True), said
