"""The documentation: it builds without a warning or a network, and what it tells a reader to do is done."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from polyfed.cli import app
from polyfed.comparison.grid import make_grid
from polyfed.config import make_config, read_yaml, unflatten
from snippets import ROOT, SHELL, follow, snippets

PAGES = sorted(page for page in (ROOT / "docs").glob("*.md"))
ELSEWHERE = {"deployment.md"}  # certificates, servers, sites: not for this test
RUN = [
    page for page in PAGES if page.name not in ELSEWHERE and any(s.kind in (*SHELL, "python") for s in snippets(page))
]
NAMES = [page.name for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_block_says_what_it_is(page: Path) -> None:
    """A block without a language is neither run nor read by anybody."""
    text = page.read_text(encoding="utf-8")
    assert text.count("\n```") == 2 * len(snippets(page))
    assert all(snippet.kind for snippet in snippets(page))
    marks = re.findall(r"<!-- skip.*", text)
    assert len(marks) == sum(bool(snippet.why) for snippet in snippets(page)), marks


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_python_and_configs_are_valid(page: Path) -> None:
    for snippet in snippets(page):
        if snippet.kind == "python":
            ast.parse(snippet.text)
        elif snippet.kind == "yaml":
            tree = unflatten(read_yaml(snippet.text, page.name))
            assert make_grid(tree).cells if {"methods", "rows"} & set(tree) else make_config(tree)


def commands() -> list[tuple[str, str]]:
    """Every `polyfed` command line of the documentation, with its page."""
    return [
        (page.name, line)
        for page in PAGES
        for snippet in snippets(page)
        for line in snippet.commands
        if line.startswith("polyfed ")
    ]


@pytest.mark.parametrize(("page", "line"), commands(), ids=[line for _, line in commands()])
def test_every_command_and_option_exists(page: str, line: str) -> None:
    here = get_command(app)
    words = line.split()[1:]
    while words and hasattr(here, "commands"):
        here = here.commands[words.pop(0)]
    known = {name for parameter in here.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=[page.name for page in RUN])
def test_a_reader_can_follow(page: Path, tmp_path: Path) -> None:
    said = follow(page, tmp_path)
    assert said
    if page.name == "tutorial.md":
        assert (tmp_path / "report.html").stat().st_size > 100_000
        assert (tmp_path / "change.csv").exists()
        assert (tmp_path / "answers.csv").read_text().count("\n") > 10
    if page.name == "new-method.md":
        assert said[-1] == "the same\n"


@pytest.mark.slow
def test_builds_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    built = {page.stem for page in (tmp_path / "site").glob("*.html")}
    assert {page.stem for page in PAGES} <= built
    for file in [*(tmp_path / "site").rglob("*.html"), *(tmp_path / "site").rglob("*.css")]:
        text = file.read_text(encoding="utf-8")
        foreign = re.findall(
            r"""<(?:script|img|link|iframe)[^>]+(?:src|href)=["'](?:https?:)?//[^"']+|url\(["']?(?:https?:)?//""", text
        )
        assert not foreign, (file.name, foreign)
