"""The README is run: every command and snippet but `make test` itself, in order, in an empty directory."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from snippets import ROOT, call, environment, snippets

README = snippets(ROOT / "README.md")


def commands() -> list[str]:
    """Every command line of the README."""
    return [command for snippet in README for command in snippet.commands]


def write_files(folder: Path) -> None:
    """The files it names."""
    for snippet in README:
        if snippet.file:
            (folder / snippet.file).write_text(snippet.text, encoding="utf-8")


def test_the_readme_has_the_two_commands_first() -> None:
    assert commands()[:2] == ["make demo", "make test"]


def test_every_command_is_one_the_tests_run() -> None:
    assert all(c.startswith(("polyfed ", "make ")) for c in commands())


@pytest.mark.slow
def test_polyfed_commands_run(tmp_path: Path) -> None:
    write_files(tmp_path)
    for command in [c for c in commands() if c.startswith("polyfed ")]:
        assert call(tmp_path, ["bash", "-c", command]).strip(), command


@pytest.mark.slow
def test_python_snippets_run_as_plain_scripts(tmp_path: Path) -> None:
    scripts = [snippet for snippet in README if snippet.kind == "python" and not snippet.file]
    assert scripts
    for snippet in scripts:
        (tmp_path / "script.py").write_text(snippet.text, encoding="utf-8")
        assert "fedper" in call(tmp_path, [sys.executable, "script.py"])


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
        [*pip.split(), ".[flower,privacy,track,export,docs,dev]"],
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
