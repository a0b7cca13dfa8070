"""What people who join expect to find: how to cite, report and release, and that each says what is true."""

import ast
import re
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

import polyfed
from polyfed.cli import call

ROOT = Path(__file__).parents[1]
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}  # of Keep a Changelog


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def makefile(target: str) -> list[str]:
    """The commands of a target."""
    lines = (ROOT / "Makefile").read_text(encoding="utf-8").split(f"\n{target}:")[1].splitlines()[1:]
    return [
        line.strip() for line in lines[: next((i for i, one in enumerate(lines) if not one.startswith("\t")), None)]
    ]


# ---- the version


def test_the_version_is_said_once_and_is_the_same_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    version = project()["version"]
    assert polyfed.__version__ == metadata.version("polyfed")
    assert read("CITATION.cff")["version"] == version
    assert call(["--version"]) == 0
    assert capsys.readouterr().out == f"polyfed {polyfed.__version__}\n"
    for file in (ROOT / "src").rglob("*.py"):
        assert f'"{version}"' not in file.read_text(encoding="utf-8"), file


# ---- citing and reporting


def test_the_citation_is_one() -> None:
    """Required by CFF 1.2: cff-version, message, title and authors; what it says of the project is so."""
    cff = read("CITATION.cff")
    assert cff["cff-version"] == "1.2.0"
    assert cff["message"]
    assert cff["title"].startswith("polyfed")
    assert cff["type"] == "software"
    assert cff["license"] == project()["license"]
    assert [one["name"] for one in cff["authors"]] == [one["name"] for one in project()["authors"]]


@pytest.mark.parametrize("page", ["SECURITY.md", "CONTRIBUTING.md", "README.md", "CHANGELOG.md"])
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    inside = [target for target in re.findall(r"\]\(([^)#]+)", text) if not target.startswith("http")]
    assert [target for target in inside if not (ROOT / target).exists()] == []


def test_security_says_how_to_report_and_what_is_protected() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", text, re.M)[0] == "How to report"
    assert "docs/deployment.md" in text


# ---- what runs by itself


def test_the_hook_before_a_commit_is_what_lint_runs() -> None:
    hooks = [hook for repo in read(".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    assert [hook["entry"] for hook in hooks] == ["make lint"]
    assert hooks[0]["language"] == "system"
    assert hooks[0]["pass_filenames"] is False
    assert [command.split()[0] for command in makefile("lint")] == ["$(BIN)/ruff", "$(BIN)/ruff", "$(BIN)/codespell"]


def test_the_workflow_calls_the_same_script_as_everybody() -> None:
    flow = read(".github/workflows/ci.yml")
    steps = [step for job in flow["jobs"].values() for step in job["steps"]]
    assert [step["run"] for step in steps if "run" in step] == [".ci/run"]
    assert flow["permissions"] == {"contents": "read"}
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
    called = re.findall(r"^make ([\w-]+)", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.M)
    assert "test" in called
    assert all(makefile(target) or f"\n{target}:" in (ROOT / "Makefile").read_text() for target in called)
    wanted = flow["jobs"]["everything"]["strategy"]["matrix"]["python"]
    assert all(f"Programming Language :: Python :: {one}" in project()["classifiers"] for one in wanted)


def test_the_hook_and_the_workflow_have_the_keys_that_their_readers_know() -> None:
    """A misspelt key is ignored or refused only where nobody looks: on the machine of another."""
    (repo,) = read(".pre-commit-config.yaml")["repos"]
    assert repo.keys() == {"repo", "hooks"}
    assert repo["repo"] == "local"
    assert {"id", "name", "entry", "language"} <= repo["hooks"][0].keys()
    assert repo["hooks"][0].keys() <= {"id", "name", "entry", "language", "pass_filenames", "always_run", "stages"}
    flow = yaml.load(
        (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"), yaml.BaseLoader
    )  # `on` is no truth
    assert flow.keys() == {"name", "on", "permissions", "jobs"}
    assert flow["on"].keys() <= {"push", "pull_request", "workflow_dispatch", "schedule"}
    for job in flow["jobs"].values():
        assert {"runs-on", "steps"} <= job.keys() <= {"name", "runs-on", "timeout-minutes", "strategy", "steps", "env"}
        assert job["strategy"].keys() <= {"fail-fast", "matrix", "max-parallel"}
        for step in job["steps"]:
            assert step.keys() <= {"name", "uses", "with", "run", "env"}
            assert ("uses" in step) != ("run" in step)
            assert re.fullmatch(r"actions/[\w-]+@v\d+", step.get("uses", "actions/checkout@v4"))
        named = re.findall(r"matrix\.([\w-]+)", str(job["steps"]))
        assert set(named) == job["strategy"]["matrix"].keys()


@pytest.mark.parametrize("form", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=lambda f: f.stem)
def test_an_issue_form_asks_something(form: Path) -> None:
    asked = yaml.safe_load(form.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= asked.keys()
    assert len({item["id"] for item in asked["body"]}) == len(asked["body"])
    assert all(item["attributes"]["label"] for item in asked["body"])


def test_a_release_is_tried_before_it_counts() -> None:
    assert makefile("release") == ["$(BIN)/python .ci/release.py"]
    said = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert "`make release`" in said


# ---- the changelog


def test_the_changelog_keeps_its_form() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (.+)$", text, re.M)
    assert sections[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", section) for section in sections[1:])
    for section in re.split(r"^## ", text, flags=re.M)[1:]:
        kinds = re.findall(r"^### (.+)$", section, re.M)
        assert set(kinds) <= KINDS
        assert len(kinds) == len(set(kinds))


# ---- the tests themselves

EXTRAS = {"flwr", "opacus", "tensorboard", "mlflow", "wandb", "onnx", "onnxscript", "onnxruntime", "playwright"}
LATER = re.compile(r"mark\.(slow|extras)\b")  # what `make test-slow` runs


def wanted_extras(*nodes: ast.AST) -> set[str]:
    """The packages that this code skips tests without."""
    calls = [call for node in nodes for call in ast.walk(node) if isinstance(call, ast.Call) and call.args]
    asked = [c.args[0] for c in calls if ast.unparse(c.func).endswith(("importorskip", "find_spec"))]
    return {str(name.value).partition(".")[0] for name in asked if isinstance(name, ast.Constant)} & EXTRAS


def never_run(source: str) -> list[str]:
    """The tests that the fast tier skips for want of an extra, and that the slow tier does not know."""
    body = ast.parse(source).body
    if any(LATER.search(ast.unparse(one)) for one in body if "pytestmark" in ast.unparse(one)):
        return []
    tests = [n for one in body for n in (one, *getattr(one, "body", ())) if isinstance(n, ast.FunctionDef)]
    rest = [one for one in body if not isinstance(one, ast.FunctionDef | ast.ClassDef)]
    late = [test for test in tests if any(LATER.search(ast.unparse(mark)) for mark in test.decorator_list)]
    everything = ["the whole file"] if wanted_extras(*rest) else []
    return everything + [test.name for test in tests if test not in late and wanted_extras(test)]


def test_what_needs_an_extra_is_run_where_the_extras_are() -> None:
    """`.ci/run` runs the fast tests without the extras, so that what needs one must be marked for the slow tier."""
    texts = {file.name: file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py")}
    found = {name: never_run(text) for name, text in texts.items() if "importorskip" in text or "find_spec" in text}
    assert {name: tests for name, tests in found.items() if tests} == {}
    assert '-m "slow or extras"' in makefile("test-slow")[0]


def test_what_nobody_runs_is_seen() -> None:
    one = "def test_one():\n    pytest.importorskip('opacus')\n"
    assert never_run(one) == ["test_one"]
    assert never_run(f"@pytest.mark.slow\n{one}") == never_run(f"pytestmark = pytest.mark.extras\n{one}") == []
    assert never_run(f"class TestAll:\n    {one.replace('    ', '        ')}") == ["test_one"]
    assert never_run("if find_spec('flwr') is None:\n    pytest.skip()\n") == ["the whole file"]
