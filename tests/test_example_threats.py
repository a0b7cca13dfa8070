"""The examples that audit uploads and plot accuracy against epsilon, whole but tiny."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_audits_give_a_table_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--data",
        "digits",
        "--methods",
        "fedavg",
        "fedper",
        "local",
        "--models",
        "mlp",
        "--clients",
        "1",
        "--steps",
        "3",
    ]
    example("audit").main([*words, "--out", str(tmp_path / "runs"), "--picture", str(tmp_path / "audit.png")])
    said = capsys.readouterr().out
    assert "| fedavg | " in said
    assert "(1/1)" in said.split("| fedavg | ")[1].splitlines()[0]  # one image: its label is read from the head
    assert "(0/1)" in said.split("| fedper | ")[1].splitlines()[0]  # the head stays with the client
    assert "| local | – |" in said
    assert "sends no model" in said
    assert (tmp_path / "audit.png").stat().st_size > 1000


@pytest.mark.slow
def test_accuracy_against_epsilon_is_printed_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("opacus")
    words = [
        "--data",
        "digits",
        "--limit",
        "40",
        "--rounds",
        "1",
        "--methods",
        "fedavg",
        "--budgets",
        "8",
        "--seeds",
        "1",
    ]
    for _ in range(2):
        example("epsilon").main([*words, "--out", str(tmp_path / "runs"), "--picture", str(tmp_path / "epsilon.png")])
    said = capsys.readouterr().out
    assert said.count("| method | 8 | no privacy |") == 2
    assert len({line for line in said.splitlines() if line.startswith("| fedavg |")}) == 1
    assert (tmp_path / "epsilon.png").stat().st_size > 1000
