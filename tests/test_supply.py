"""What is installed: bounds, pins and hashes agree, other files are refused, and an audit nobody answers is said."""

import importlib.util
import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def supply():
    spec = importlib.util.spec_from_file_location("supply", ROOT / ".ci" / "supply.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def answers(monkeypatch):
    """Every command ends like this, and is not run."""

    def answer(code, out="", err=""):
        monkeypatch.setattr(subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, code, out, err))

    return answer


def test_every_dependency_has_an_upper_bound_that_lets_its_pin_through(supply):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for each in project["optional-dependencies"].values() for one in each)]
    pins = supply.pinned(supply.CONSTRAINTS)
    for one in map(Requirement, wanted):
        assert any(bound.operator in ("<", "<=", "==", "~=") for bound in one.specifier), f"{one} has no upper bound"
        assert pins[supply.canonicalize_name(one.name)] in one.specifier, f"{one} excludes its pin"


def test_the_hashed_files_pin_what_the_constraints_pin(supply):
    files = (supply.BASE, supply.DOCS, supply.EXTRAS, supply.ASIDE)
    base, docs, extras, aside = parts = [supply.pinned(file) for file in files]
    assert len(base | docs | extras | aside) == sum(map(len, parts)), "a package is listed twice"
    pins = supply.pinned(supply.CONSTRAINTS)
    assert base | docs | extras | aside == pins, "constraints.txt has changed: run make hashes"
    assert aside.keys() == supply.aside() >= {"pyarrow", "datasets"}
    for file in files:
        for entry in re.split(r"\n(?=\w)", file.read_text())[1:]:
            assert re.fullmatch(r"\S+==\S+( \\\n    --hash=sha256:[0-9a-f]{64})+\n?", entry), entry


def test_the_demo_and_the_tests_need_only_the_first_file(supply):
    base = supply.pinned(supply.BASE)
    assert {"torch", "numpy", "pytest", "hypothesis", "markupsafe"} <= base.keys()
    assert not {"ray", "flwr", "onnxruntime", "playwright", "mkdocs"} & base.keys()
    assert {"mkdocs-material", "mkdocstrings-python"} <= supply.pinned(supply.DOCS).keys()


def test_other_files_are_refused_and_a_missing_index_is_said(supply, answers, capsys):
    answers(1, err="ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.")
    assert supply.install(supply.BASE) == 1
    assert "make HASHES=no" in capsys.readouterr().out
    answers(1, err="noise\nERROR: No matching distribution found for absl-py==2.5.1")
    assert supply.install(supply.BASE) == 0
    assert capsys.readouterr().out == (
        "Hashes are not compared: ERROR: No matching distribution found for absl-py==2.5.1\n"
    )


def test_what_is_installed_is_compiled_at_once_and_what_extras_add_when_it_is_used(supply, answers, monkeypatch):
    compiled = []
    monkeypatch.setattr(supply, "write_bytecode", compiled.append)
    answers(1, err="noise\nERROR: No matching distribution found for absl-py==2.5.1")
    assert supply.install(supply.BASE) == 0
    assert compiled == []
    answers(0)
    for file in (supply.BASE, supply.DOCS, supply.EXTRAS):
        assert supply.install(file) == 0
    assert len(compiled) == 1
    assert Path(pytest.__file__).parents[1] in compiled[0]


def test_bytecode_is_written_for_everything_but_tests_and_nonsense(supply, tmp_path):
    for name in ("one.py", "package/two.py", "package/tests/three.py", "nonsense.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("number =\n" if name == "nonsense.py" else "number = 1\n")
    supply.write_bytecode([tmp_path])
    assert sorted(file.name.partition(".")[0] for file in tmp_path.rglob("*.pyc")) == ["one", "two"]


def test_torch_is_the_build_pip_takes_if_its_hash_is_known(supply, answers, capsys):
    digests = ["a" * 64, "b" * 64]
    text = (
        "six==1 \\\n    --hash=sha256:0\ntorch==2.0 \\\n"
        + " \\\n".join(f"    --hash=sha256:{d}" for d in digests)
        + "\n"
    )

    def taken(digest):
        chosen = {"url": "file:///w/torch-2.0%2Bcpu.whl", "archive_info": {"hashes": {"sha256": digest}}}
        answers(0, json.dumps({"install": [{"download_info": chosen}]}))
        return supply.settled(text).splitlines()[2:]

    assert taken("b" * 64) == [f"torch @ file:///w/torch-2.0%2Bcpu.whl --hash=sha256:{'b' * 64}"]
    assert taken("c" * 64) == []
    assert "torch is not compared: pip takes a build of which no hash is known here" in capsys.readouterr().out
    answers(1, "")
    assert supply.settled(text) == text


def test_a_wheel_fits_by_version_python_and_platform(supply):
    def fits(tags, version="2.0"):
        return supply.fits(f"one-2.0-{tags}.whl", version)

    assert fits("py3-none-any")
    assert fits("cp312-cp312-manylinux_2_28_x86_64")
    assert fits("cp39-abi3-macosx_11_0_arm64")
    assert fits("py311-none-any")
    assert not fits("py310-none-any")
    assert supply.fits("one-2.0+cpu-cp311-cp311-linux_x86_64.whl", "2.0")
    assert not fits("py3-none-any", "2.1")
    assert not fits("cp39-cp39-manylinux_2_28_x86_64")
    assert not fits("py3-none-win_amd64")
    assert not supply.fits("one-2.0.tar.gz", "2.0")


def audited(*each):
    return json.dumps({"dependencies": list(each), "fixes": []})


def test_an_audit_tells_what_is_known_or_that_nobody_could_be_asked(supply, answers, capsys):
    skipped, clean = {"name": "a", "skip_reason": "not found"}, {"name": "b", "version": "1", "vulns": []}
    answers(0, audited(skipped))
    assert supply.audit() == 0
    assert "Not audited: the advisory service answers for none of the 1 packages" in capsys.readouterr().out
    answers(1, "", "Traceback\nConnectionError: no such host")
    assert supply.audit() == 0
    assert capsys.readouterr().out == "Not audited: ConnectionError: no such host\n"
    answers(0, audited(skipped, clean))
    assert supply.audit() == 0
    assert "1 of 2 packages audited, 0 advisories" in capsys.readouterr().out
    answers(1, audited(clean, {"name": "c", "version": "2", "vulns": [{"id": "CVE-1"}]}))
    assert supply.audit() == 1
    assert "c 2: CVE-1" in capsys.readouterr().out
