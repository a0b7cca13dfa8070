"""The documentation: it builds without a warning or a network, and what it tells a reader to do is done."""

import ast
import json
import os
import pydoc
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.main import get_command

import polyfed
import polyfed.methods
from polyfed.cli import app
from polyfed.comparison.grid import make_grid
from polyfed.config import make_config, read_yaml, unflatten
from snippets import ROOT, SHELL, follow, pasted, snippets

PAGES = sorted(page for page in (ROOT / "docs").glob("*.md"))
ELSEWHERE = {"deployment.md"}  # certificates, servers, sites: not for this test
RUN = [
    page
    for page in PAGES
    if page.name not in ELSEWHERE and any(s.kind in (*SHELL, "python") and not s.why for s in snippets(page))
]
NAMES = [page.name for page in PAGES]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves a folder and logs nothing."""

    def log_message(self, *words: object) -> None:
        """Say nothing."""


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


BASH, ZSH = (shutil.which(name) for name in ("bash", "zsh"))
SHELL_PAGES = [page for page in (ROOT / "README.md", *PAGES) if any(s.commands for s in snippets(page))]


@pytest.mark.skipif(ZSH is None, reason="skipped: no zsh")
@pytest.mark.parametrize("page", SHELL_PAGES, ids=[page.name for page in SHELL_PAGES])
def test_commands_say_the_same_when_they_are_pasted_into_bash_and_zsh(page: Path, tmp_path: Path) -> None:
    """Interactive shells: in zsh brackets are patterns and a # begins no comment."""
    text = "".join(snippet.text for snippet in snippets(page) if snippet.kind in SHELL)
    bash = pasted(text, [str(BASH), "--norc", "-i"], tmp_path)
    assert bash == pasted(text, [str(ZSH), "-f", "-i"], tmp_path)
    assert len(bash) >= sum(line.startswith("polyfed ") for s in snippets(page) for line in s.commands)


@pytest.mark.skipif(ZSH is None, reason="skipped: no zsh")
@pytest.mark.parametrize("line", ["polyfed compare methods=[fedavg,local]", "polyfed show runs/a  # what it achieved"])
def test_a_command_that_zsh_takes_otherwise_is_noticed(line: str, tmp_path: Path) -> None:
    assert pasted(line, [str(BASH), "--norc", "-i"], tmp_path) != pasted(line, [str(ZSH), "-f", "-i"], tmp_path)


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
        assert "the same\n" in said
        assert all(name in said[-1] for name in ("Adaptive", "Gated", "Sharp"))


def method_files() -> list[tuple[str, ast.Module, str]]:
    """The files of the page about new methods: name, tree and text."""
    written = [s for s in snippets(ROOT / "docs" / "new-method.md") if s.file and not s.file.startswith("check_")]
    return [(snippet.file, ast.parse(snippet.text), snippet.text) for snippet in written]


def test_method_files_of_the_page_are_short_and_need_public_names_only() -> None:
    assert [name for name, _, _ in method_files()] == ["plain.py", "steady.py", "adaptive.py", "gated.py", "sharp.py"]
    for name, tree, text in method_files():
        nodes = list(ast.walk(tree))
        modules = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and "polyfed" in str(node.module)}
        assert modules == {"polyfed.methods"}, name
        touched = [node.attr for node in nodes if isinstance(node, ast.Attribute)]
        assert not [word for word in touched if word.startswith("_") and word != "__init__"], name
        assert name == "steady.py" or len(text.splitlines()) < 41, name  # the first line is the name of the file


def referenced() -> set[str]:
    """The dotted names that the reference takes from the source."""
    return set(re.findall(r"^::: (\S+)$", (ROOT / "docs" / "reference.md").read_text(encoding="utf-8"), re.M))


def test_the_reference_has_every_public_name() -> None:
    """What can be imported from `polyfed` and what a method file needs; every name leads to something documented."""
    names = {name.rpartition(".")[2] for name in referenced()}
    assert set(polyfed.__all__) - {"methods"} <= names
    assert {"Client", "Server", "Fit", "Step", "Field", "Wire", "Method", "OnTop", "Upload", "Params"} <= names
    assert {name for name in polyfed.methods.__all__ if name[0].isupper()} <= names
    table = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8").partition("### methods")[2].partition("## ")[0]
    listed = set(re.findall(r"`(\w+)`", table)) - {"polyfed"}
    assert listed == set(polyfed.methods.__all__)
    for name in referenced():
        assert pydoc.locate(name).__doc__, name  # type: ignore[union-attr]


@pytest.mark.parametrize("folder", ["src", "tests", "docs", "examples"])
def test_no_file_refers_to_a_page_that_a_reader_does_not_have(folder: str) -> None:
    """Pages of docs/ are named with their folder, pages of the root in capitals; a section has a name, no number."""
    named = re.compile(r"docs/[\w-]+\.md|(?<![\w/-])[A-Z]+\.md|(?<![\w/-])[\w-]+\.md \d[\d.]*")
    found = [
        f"{file.relative_to(ROOT)}: {name}"
        for file in sorted((ROOT / folder).rglob("*"))
        if file.suffix in (".py", ".md", ".yaml")
        for name in named.findall(file.read_text(encoding="utf-8"))
        if not (ROOT / name).is_file()
    ]
    assert not found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly and without a warning."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.mark.slow
def test_every_page_is_built_and_can_be_searched(site: Path) -> None:
    assert {page.stem for page in PAGES} <= {page.stem for page in site.glob("*.html")}
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {f"{page.stem}.html" for page in PAGES} - {"index.html"} <= found


@pytest.mark.slow
def test_the_reference_page_shows_every_public_name(site: Path) -> None:
    text = (site / "reference.html").read_text(encoding="utf-8")
    for name in referenced() - {"polyfed.errors"}:
        assert f'id="{name}"' in text, name
    assert 'id="polyfed.methods.sites.Client.fit"' in text
    assert 'id="polyfed.errors.UsageError"' in text


@pytest.mark.slow
def test_a_page_fetches_nothing_from_elsewhere(site: Path) -> None:
    for file in [*site.rglob("*.html"), *site.rglob("*.css")]:
        text = file.read_text(encoding="utf-8")
        foreign = re.findall(
            r"""<(?:script|img|link|iframe)[^>]+(?:src|href)=["'](?:https?:)?//[^"']+|url\(["']?(?:https?:)?//""", text
        )
        assert not foreign, (file.name, foreign)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="skipped: no chromium")
def test_a_reader_finds_a_word_and_asks_nobody_else(site: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    handler = partial(QuietHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, playwright.sync_playwright() as driver:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        here = f"http://127.0.0.1:{server.server_port}/"
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{here}index.html")
        page.click("input.md-search__input")  # the search starts when somebody wants to type
        page.keyboard.type("quorum")
        page.wait_for_selector(".md-search-result__link[href*='questions.html']", state="attached", timeout=60_000)
        browser.close()
        server.shutdown()
    assert asked
    assert [url for url in asked if not url.startswith((here, "data:", "blob:"))] == []
