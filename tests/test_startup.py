"""What the source promises as a whole: a fast start, nothing that executes on load, and rooms that keep their order."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import polyfed

SOURCE = Path(polyfed.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
HEAVY = ("torch", "sklearn", "pandas", "flwr", "ray", "matplotlib", "plotly", "numpy", "scipy")
IDLE = (*(name for name in HEAVY if name not in ("torch", "numpy")), "joblib", "onnx", "mlflow", "numpy.ma")

# The list of docs/architecture.md, from top to bottom: a room imports only rooms above it, and itself. Beside the list
# there are two modules that every room may use, `errors` and `registry`.
ORDER = ("errors", "files", "outside", "registry", "config", "rng", "data", "models", "params", "message", "parts")
ORDER += ("methods", "measure", "threats", "engine", "use", "comparison", "report", "papers")
FRONT = ("__init__", "api", "cli")  # the front door: nobody imports it

FORBIDDEN = {
    r"allow_pickle\s*=\s*True": "npy without pickle",
    r"pickle\.loads?\b|\bUnpickler\b": "nothing executes on load",
    r"torch\.load\b": "safetensors instead",
    r"yaml\.(load|unsafe_load|full_load)\b|yaml\.(Unsafe|Full)?Loader\b": "YAML safe-load",
    r"weights_only\s*=\s*False": "nothing executes on load",
    r"(?<![\w.])(eval|exec)\(": "nothing executes on load",
    r"NotImplementedError|\bTODO\b|\bFIXME\b": "what is there is finished",
    r"(?<![\w.])print\(": "the command line writes, the rest reports",
}


def test_help_is_light() -> None:
    """`polyfed --help` answers before anything heavy is imported."""
    code = f"""
import sys
from polyfed.cli import call
assert call(["--help"]) == 0
heavy = [name for name in {HEAVY!r} if name in sys.modules]
assert not heavy, heavy
import polyfed
assert "polyfed.api" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "compare" in done.stdout


def test_a_run_on_digits_imports_nothing_it_does_not_need_before_its_first_round(tmp_path: Path) -> None:
    """The libraries of tables, pictures and clusters wait until somebody asks for them; torch takes long enough."""
    code = f"""
import os, sys
from polyfed import cli
from polyfed.engine import rounds
def first_round(run):
    print([name for name in {IDLE!r} if name in sys.modules], flush=True)
    os._exit(0)
rounds.Run._rounds = first_round
cli.call(["run", "--out", {str(tmp_path / "run")!r}, "engine.workers=1"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_what_was_imported_is_not_looked_through_for_garbage() -> None:
    """It counts as old from the start; what somebody else has put aside stays aside."""
    code = """
import gc, sys
if sys.argv[1] == "aside":
    gc.freeze()
aside = gc.get_freeze_count()
import polyfed
polyfed.run
young = sum(len(gc.get_objects(generation=number)) for number in (0, 1))
print(young < len(gc.get_objects()) / 10, bool(gc.get_freeze_count()) is bool(aside), gc.isenabled())
"""
    for way, said in (("plain", "True True True"), ("aside", "True True")):
        done = subprocess.run([sys.executable, "-c", code, way], capture_output=True, text=True, timeout=60)
        assert done.stdout.strip().endswith(said), done.stderr


@pytest.mark.parametrize("pattern", FORBIDDEN)
def test_source_has_none_of(pattern: str) -> None:
    found = [
        f"{file.relative_to(SOURCE)}:{number}: {line.strip()}"
        for file in FILES
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(pattern, line.partition("#")[0])
    ]
    assert not found, FORBIDDEN[pattern]


def rooms_of(node: ast.AST) -> Iterator[str]:
    """The rooms an import statement names."""
    names: list[str] = []
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        base = node.module or ""
        names = [f"{base}.{alias.name}" for alias in node.names] if base == "polyfed" else [base]
    yield from (name.split(".")[1] for name in names if name.startswith("polyfed."))


def room_of(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def test_every_room_has_its_place() -> None:
    assert {room_of(file) for file in FILES} <= {*ORDER, *FRONT}


def test_the_table_of_the_page_is_this_order() -> None:
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = {room_of(file) for file in FILES}
    assert re.findall(r"^\| `(\w+)` \|", page, re.M) == [room for room in ORDER if room in rooms]


@pytest.mark.parametrize("file", FILES, ids=[str(file.relative_to(SOURCE)) for file in FILES])
def test_a_room_imports_only_rooms_above_it(file: Path) -> None:
    room = room_of(file)
    if room in FRONT:
        return
    above = ORDER[: ORDER.index(room) + 1]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        for other in rooms_of(node):
            assert other in above, f"line {getattr(node, 'lineno', 0)}: {room} imports {other}"


def test_the_rule_sees_imports() -> None:
    """A test of the test: what it must find, it finds."""
    tree = ast.parse("import polyfed.engine.local\nfrom polyfed import methods, rng\nfrom polyfed.api import run\n")
    assert [room for node in ast.walk(tree) for room in rooms_of(node)] == ["engine", "methods", "rng", "api"]
