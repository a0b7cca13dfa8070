"""Runs inside demos: personalising at every evaluation leaves no trace, and answers are those that were measured."""

from pathlib import Path

import pytest
from tiny_paper import item, room

from polyfed.config import Tree, make_config
from polyfed.engine.local import Serial
from polyfed.engine.rounds import Run
from polyfed.engine.run_folder import RunFolder
from polyfed.measure.watch import Silent
from polyfed.papers.cell import cells_of
from polyfed.papers.demos import Demo
from polyfed.papers.store import from_demo
from polyfed.papers.verify import compare
from polyfed.papers.within import answers, personalised_run, runs_of
from polyfed.report.runs import records

TREE: Tree = {
    "data": {"name": "digits", "limit": 12},
    "model": {"name": "mlp", "width": 0.05},
    "split": {"clients": 3, "partition": "dirichlet", "alpha": 1.0, "test": 0.3},
    "train": {"lr": 0.1, "batch": 8},
    "rounds": 2,
    "eval": {"every": 1, "classes": False},
    "engine": {"workers": 0},
}


def accuracy_after(folder: RunFolder, round: int) -> float:
    table = records(folder.path, "rounds")
    return float(table[(table["measure"] == "personal") & (table["round"] == round)]["accuracy"].iloc[0])


def test_personalising_at_every_evaluation_shows_in_the_curve_and_leaves_no_trace(tmp_path: Path) -> None:
    tree = {**TREE, "method": {"name": "fedavg-ft", "epochs": 20}}
    config = make_config(tree, {"seed": 0})
    plain = RunFolder.create(config, tmp_path / "plain")
    Run(config, plain, Serial(), Silent()).go()
    with personalised_run(tree, 0) as folder:
        ours, theirs = folder.result(), plain.result()
        assert ours is not None
        assert theirs is not None
        assert ours["fingerprint"] == theirs["fingerprint"]
        assert ours["personal"] == theirs["personal"]
        assert accuracy_after(folder, 1) > accuracy_after(plain, 1)
    assert not folder.path.exists()


def test_answers_are_those_that_were_measured() -> None:
    with runs_of(TREE, {"FedAvg": "fedavg", "tuned": {"name": "fedavg-ft", "epochs": 3}}, 0) as folders:
        assert list(folders) == ["FedAvg", "tuned"]
        for folder in folders.values():
            shares = [float((logits.argmax(1) == y).float().mean()) for _, logits, y in answers(folder)]
            summary = folder.result()
            assert summary is not None
            assert sum(shares) / len(shares) == pytest.approx(summary["personal"]["accuracy"])


def test_seconds_of_a_demo_are_kept_but_are_no_part_of_what_must_be_repeated(tmp_path: Path) -> None:
    cell = cells_of(item(room(tmp_path), "figure1"), "cpu")[0]
    one, other, wrong = (
        from_demo(cell, Demo({"all": {"rounds": rounds, "seconds until 30%": seconds}}), 1.0)
        for rounds, seconds in ((4.0, 1.5), (4.0, 2.5), (6.0, 1.5))
    )
    assert one.numbers["all"]["seconds until 30%"] == 1.5
    assert compare(one, other)[0] == "same bits"
    assert compare(one, wrong)[0] == "different"
