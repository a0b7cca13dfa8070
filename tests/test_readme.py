"""The README is run: every command and snippet but `make test` itself, in order, in an empty directory."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"```(bash|yaml|python)\n(.*?)```", re.S)


def blocks() -> list[tuple[str, str]]:
    """Language and text of each block of the README, in order."""
    return BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))


def commands() -> list[str]:
    """Every command line of the README, without comments."""
    lines = [line for kind, text in blocks() if kind == "bash" for line in text.splitlines()]
    return [line.split("  #")[0].strip() for line in lines if line.strip()]


def write_files(folder: Path) -> list[Path]:
    """A block that begins with a comment `# name.ext` is that file; other Python blocks are scripts."""
    scripts = []
    for number, (kind, text) in enumerate(blocks()):
        named = re.match(r"# (\S+\.(?:py|yaml))\n", text)
        if named:
            (folder / named[1]).write_text(text, encoding="utf-8")
        elif kind == "python":
            scripts.append(folder / f"script{number}.py")
            scripts[-1].write_text(text, encoding="utf-8")
    return scripts


def environment(folder: Path) -> dict[str, str]:
    """The caller's, with this interpreter's commands first and runs under the folder."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "POLYFED_OUT": str(folder / "out")}


def test_the_readme_has_the_two_commands_first() -> None:
    assert commands()[:2] == ["make demo", "make test"]


def test_every_command_is_one_the_tests_run() -> None:
    assert all(c.startswith(("polyfed ", "make ")) for c in commands())


@pytest.mark.slow
def test_polyfed_commands_run(tmp_path: Path) -> None:
    write_files(tmp_path)
    for command in [c for c in commands() if c.startswith("polyfed ")]:
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        assert done.stdout.strip(), command


@pytest.mark.slow
def test_python_snippets_run_as_plain_scripts(tmp_path: Path) -> None:
    for script in write_files(tmp_path):
        done = subprocess.run(
            [sys.executable, script.name],
            cwd=tmp_path,
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        assert "fedper" in done.stdout


@pytest.mark.slow
def test_make_demo_prints_the_table(tmp_path: Path) -> None:
    done = subprocess.run(
        ["make", "demo"], cwd=ROOT, env=environment(tmp_path), capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    for method in ("local", "fedavg", "fedavg-ft", "fedprox", "fedper"):
        assert re.search(rf"^{method} .*\d\d\.\d ± ", done.stdout, re.M), done.stdout
    assert list((tmp_path / "out").glob("*/table.md"))


@pytest.mark.slow
def test_one_constraints_file_serves_all_extras() -> None:
    """Every extra together resolves under constraints.txt; what is resolved is what is pinned."""
    pip = f"{sys.executable} -m pip install --dry-run --quiet --ignore-installed --report - -c constraints.txt"
    done = subprocess.run(
        [*pip.split(), ".[flower,privacy,track,export,dev]"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    pinned = dict(re.findall(r"^([a-z0-9-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M))
    for item in json.loads(done.stdout)["install"]:
        name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
        if name not in ("polyfed", "setuptools"):
            assert item["metadata"]["version"].split("+")[0] == pinned.get(name), name
