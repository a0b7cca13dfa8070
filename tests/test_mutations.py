"""The runner of `make mutate`, on a project of one function."""

from pathlib import Path

import pytest

from mutations import Mutation, Project, listed, measure

SOURCE = '''
def larger(a, b):
    """Of two."""
    while a == b:
        return b
    return a if a > b else b
'''
TESTS = "from toy.room.maths import larger\n\n\ndef test_larger():\n    assert larger(2, 1) == larger(2, 2) == 2\n"
LIST = """
room/maths.py:
  tests: [test_maths.py]
  mutations:
    - {was: "a > b", now: "a < b"}
    - {was: "a if a > b else b", now: "a"}
    - {was: "return b", now: "pass"}
    - {was: "a >= b", now: "a > b"}
    - {was: "b", now: "a"}
    - {was: "if a > b", now: "if b < a", equivalent: "the same comparison from the other side"}
    - {was: "a > b else b", now: "b > a else b", equivalent: "this is said wrongly"}
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    source, tests = tmp_path / "src" / "toy", tmp_path / "tests"
    (source / "room").mkdir(parents=True)
    tests.mkdir()
    (source / "room" / "maths.py").write_text(SOURCE)
    (tests / "test_maths.py").write_text(TESTS)
    (tests / "list.yaml").write_text(LIST)
    return Project(source, tests, tmp_path / "build" / "kept.json", limit=2)


def test_found_missed_hanging_stale_and_equivalent_ones_are_told_apart(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    mutations = list(listed(project.tests / "list.yaml"))
    assert measure(project, mutations, jobs=2) == 1
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said[:5]] == ["found", "NOT", "found", "NOT", "found"]
    assert said[5:] == [
        "room: 2 of 3 found (66.7%), 2 equivalent",
        f"not found: {mutations[1]}",
        *(f"stale, because the fragment does not stand in the file exactly once: {m}" for m in mutations[3:5]),
        f"called equivalent, but found: {mutations[6]}",
    ]
    assert (project.source / "room" / "maths.py").read_text() == SOURCE, "the working tree is not touched"


def test_verdicts_are_kept_until_the_file_or_its_tests_change(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Mutation] = []
    monkeypatch.setattr(Project, "_tried", lambda self, mutation: tried.append(mutation) or bool(mutation.was))
    mutations = list(listed(project.tests / "list.yaml"))[:2]
    assert measure(project, mutations, jobs=1) == 0
    again = Project(project.source, project.tests, project.kept)
    assert measure(again, mutations, jobs=1) == 0
    assert len(tried) == 3, "the file as it is, and two mutants, once"
    (project.tests / "test_maths.py").write_text(TESTS + "    assert larger(1, 2) == 2\n")
    assert measure(again, mutations, jobs=1) == 0
    assert len(tried) == 6


def test_tests_that_fail_anyway_find_nothing(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    (project.tests / "test_maths.py").write_text(TESTS + "    assert larger(1, 2) == 1\n")
    assert measure(project, list(listed(project.tests / "list.yaml"))[:1], jobs=1) == 1
    assert capsys.readouterr().out == "these tests fail without any mutation: test_maths.py\n"


def test_what_is_no_python_is_no_mutation(project: Project) -> None:
    with pytest.raises(SyntaxError):
        measure(project, [Mutation("room/maths.py", ("test_maths.py",), "a > b", "a >")], jobs=1)
