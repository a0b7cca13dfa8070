"""The commands report and figure, and the picture of a split: what they print, write and refuse."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest

import polyfed

Cli = Callable[..., Any]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny: dict) -> Path:
    path = tmp_path_factory.mktemp("report") / "run"
    polyfed.run(tiny, method="k-cluster", rounds=2, out=path)
    return path


def test_report(cli: Cli, run: Path, tmp_path: Path) -> None:
    said = cli("report", str(run))
    assert (said.code, said.out, said.err) == (0, f"report: {run}/report.html\n", "")
    assert (run / "report.html").read_text().startswith("<!DOCTYPE html>")
    said = cli("report", str(run), "--out", str(tmp_path / "x.html"), "--json")
    assert json.loads(said.out) == {"report": str(tmp_path / "x.html")}


def test_figure_with_its_data(cli: Cli, run: Path, tmp_path: Path) -> None:
    said = cli("figure", "rounds", str(run), "--out", str(tmp_path / "x.svg"), "--json")
    assert json.loads(said.out) == {"figure": str(tmp_path / "x.svg"), "data": str(tmp_path / "x.csv")}
    shown = pandas.read_csv(tmp_path / "x.csv")
    rounds = polyfed.load(run).rounds
    measured = rounds[rounds["measure"] == "personal"]["accuracy"].tolist()
    panel = shown[shown["panel"].str.startswith("personal models") & (shown["finish"] == "before")]
    assert panel["accuracy"].tolist() == pytest.approx(measured)


def test_records_agree_with_the_summary(run: Path) -> None:
    """What a run keeps for pictures: what it spent, who holds what, its clusters."""
    result = polyfed.load(run)
    spent = pandas.read_csv(run / "spent.csv")
    assert spent["round"].tolist() == [1, 2, 3]  # the last is finish
    assert spent["bytes_up"].iloc[-1] == result["bytes.up"]
    assert spent["bytes_down"].iloc[-1] == result["bytes.down"]
    assert spent["seconds"].is_monotonic_increasing
    told = json.loads((run / "federation.json").read_text())
    held = polyfed.federation(run / "config.yaml").describe()["clients"]
    assert [c["counts"] for c in told["clients"]] == [c["counts"] for c in held]
    assert len(told["class_names"]) == 10


def test_split_is_drawn(cli: Cli, tiny_words: list[str], tmp_path: Path) -> None:
    said = cli("split", *tiny_words, "--figure", str(tmp_path / "s.pdf"), "--json")
    described = json.loads(said.out)
    table = pandas.read_csv(tmp_path / "s.csv")
    assert table["samples"].sum() == sum(sum(c["counts"]) for c in described["clients"])
    assert (tmp_path / "s.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["report", "nothing"], 3, "there is no run at 'nothing'"),
        (["report", "{empty}"], 3, "neither a run nor a comparison"),
        (["report", "{run}", "--baseline", "fedprox"], 2, "the baseline 'fedprox' is not in the comparison"),
        (["report"], 2, "Missing argument"),
        (["figure", "rounds", "{run}"], 2, "Missing option '--out'"),
        (["figure", "round", "{run}", "--out", "x.pdf"], 2, "did you mean 'rounds'?"),
        (["figure", "rounds", "{run}", "--out", "x.jpg"], 2, "written as pdf, svg, png"),
        (["figure", "similarity", "{run}", "--out", "x.pdf"], 3, "nothing for the figure 'similarity'"),
    ],
)
def test_mistakes(cli: Cli, run: Path, tmp_path: Path, words: list[str], code: int, sentence: str) -> None:
    said = cli(*(word.format(run=run, empty=tmp_path) for word in words))
    assert said.code == code
    assert sentence in said.err
    assert said.err.count("\n") == 1


def test_a_corrupt_run_is_one_sentence(cli: Cli, run: Path, tmp_path: Path) -> None:
    import shutil

    broken = shutil.copytree(run, tmp_path / "broken")
    (broken / "rounds.csv").write_text("round,measure\nx\n")
    said = cli("report", str(broken))
    assert said.code == 3
    assert "is corrupt: rounds.csv" in said.err
    assert "Traceback" not in said.err
