"""The README is run: every command and snippet but `make test` itself, in order, in an empty directory."""

import re
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import polyfed
from polyfed.config import read_assignments, read_config
from polyfed.report.kinds import draw
from polyfed.report.names import as_written
from polyfed.report.print import save
from polyfed.report.runs import select
from snippets import ROOT, call, environment, snippets

README = snippets(ROOT / "README.md")
BEGIN, END = "<!-- demo table -->", "<!-- end of demo table -->"
PICTURE = "docs/pictures/demo.png"


def commands() -> list[str]:
    """Every command line of the README."""
    return [command for snippet in README for command in snippet.commands]


def write_files(folder: Path) -> None:
    """The files it names."""
    for snippet in README:
        if snippet.file:
            (folder / snippet.file).write_text(snippet.text, encoding="utf-8")


def test_the_first_screen() -> None:
    """A sentence, an install line, a command with its table and picture, three bullets."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## ")[0]
    order = ["# polyfed", "Federated learning", "pip install", "polyfed compare", BEGIN, END, f"]({PICTURE})", "\n- **"]
    places = [text.index(word) for word in order]
    assert places == sorted(places)
    assert text.count("\n- **") == 3
    assert (ROOT / PICTURE).stat().st_size > 10_000


def test_the_first_command_is_the_demo() -> None:
    install, demo, *_ = commands()
    assert install == "python -m pip install -c constraints.txt ."
    given = read_assignments([word for word in shlex.split(demo) if "=" in word])
    assert given == {"methods": read_config(ROOT / "examples" / "demo.yaml")["methods"]}


def test_every_command_is_one_the_tests_run() -> None:
    assert all(c.startswith("polyfed ") for c in commands()[1:])


@pytest.mark.slow
def test_polyfed_commands_run(tmp_path: Path) -> None:
    """In bash; that zsh reads the same words of them is shown with those of the pages."""
    write_files(tmp_path)
    for command in [c for c in commands()[2:] if c.startswith("polyfed ")]:  # `make demo` is the second one
        assert call(tmp_path, ["bash", "-c", command]).strip(), command


@pytest.mark.slow
def test_python_snippets_run_as_plain_scripts(tmp_path: Path) -> None:
    scripts = [snippet for snippet in README if snippet.kind == "python" and not snippet.file]
    assert scripts
    for snippet in scripts:
        (tmp_path / "script.py").write_text(snippet.text, encoding="utf-8")
        assert "FedPer" in call(tmp_path, [sys.executable, "script.py"])


# ---- the demo, its table and its picture


def demo_table(made: Any) -> str:
    """The table as the README has it: without seconds, which are another machine's."""
    usual = ["global", "personal", "head", "mid", "tail", "worst-10", "bytes"]
    rows = [line for line in made.table("markdown", columns=usual).splitlines() if line.startswith("|")]
    return "\n".join([*rows, "", "mean ± std over 3 seeds; bold: best of the column, underlined: second best"])


def shown_table() -> str:
    """The table that is in the README."""
    return (ROOT / "README.md").read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip()


def numbers(table: str) -> dict[str, list[str]]:
    """Its rows without marks, by method."""
    lines = [re.sub(r"[*]|</?u>", "", line) for line in table.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row[1:] for row in rows if "---" not in row[0]}


def write_demo(folder: Path) -> None:
    """Put the table and the picture of a demo's comparison where the README shows them."""
    file = ROOT / "README.md"
    before, _, rest = file.read_text(encoding="utf-8").partition(BEGIN)
    table = demo_table(polyfed.load(folder))
    file.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    data = save(draw("groups", select([folder])), ROOT / PICTURE)
    data.unlink()


def test_the_table_has_every_method_of_the_demo() -> None:
    methods = read_config(ROOT / "examples" / "demo.yaml")["methods"]
    assert list(numbers(shown_table())) == ["method", *map(as_written, methods)]
    assert [as_written(name) for name in ("mupfl", "fedcrc", "map", "ecl", "distfl")] == [
        "MuPFL",
        "FedCRC",
        "MAP",
        "ECL",
        "DistFL",
    ]


@pytest.mark.slow
@pytest.mark.timeout(1200)  # it trains for minutes, and for many where the machine is slow and others use it
def test_make_demo_makes_the_table_of_the_readme(tmp_path: Path) -> None:
    """Within what another kind of CPU may change.

    `PYTHONPATH=tests python -m tests.test_readme DIR` writes what a demo in DIR gave.
    """
    done = subprocess.run(
        ["make", "demo"], cwd=ROOT, env=environment(tmp_path), capture_output=True, text=True, timeout=1100
    )
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "out").iterdir()
    assert f"report: {folder / 'report.html'}" in done.stdout
    ours, theirs = numbers(shown_table()), numbers(demo_table(polyfed.load(folder)))
    assert list(ours) == list(theirs)
    for method, row in ours.items():
        for shown, found in zip(row, theirs[method], strict=True):
            if "±" not in shown:
                assert shown == found, method
                continue
            mean, std = map(float, shown.split(" ± "))
            assert float(found.split(" ± ")[0]) == pytest.approx(mean, abs=max(3.0, std)), method


@pytest.mark.slow
def test_one_constraints_file_serves_all_extras() -> None:
    """What polyfed with every extra needs, and what that needs in turn, is here as pinned and within all bounds."""
    pinned = dict(re.findall(r"^([a-z0-9-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M))
    wanted, seen = [Requirement("polyfed[flower,privacy,track,export,browser,docs,dev]")], set()
    while wanted:
        one = wanted.pop()
        name, version = re.sub(r"[-_.]+", "-", one.name).lower(), metadata.version(one.name)
        assert one.specifier.contains(version, prereleases=True), f"{one} is wanted, and {version} is installed"
        assert name in ("polyfed", "setuptools") or version.split("+")[0] == pinned.get(name), name
        for each in map(Requirement, metadata.requires(name) or ()):
            asked = each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in ("", *one.extras))
            if asked and str(each) not in seen:
                seen.add(str(each))
                wanted.append(each)
    assert {"torch", "ray", "opacus", "mkdocs"} <= {Requirement(one).name for one in seen}


if __name__ == "__main__":
    write_demo(Path(sys.argv[1]))
