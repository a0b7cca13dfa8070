"""The figure maps of runs: whose images are shown, whose model looks, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

import polyfed
from polyfed.data.samples import Samples
from polyfed.report.kinds.maps import activation_maps
from polyfed.report.looking import maps_of_runs, one_of_each
from polyfed.report.runs import select

Cli = Callable[..., Any]
KEYS = {"model.name": "cnn-bn", "model.width": 0.1, "data.size": 16, "rounds": 1}


@pytest.fixture(scope="module")
def runs_of(tmp_path_factory: pytest.TempPathFactory, tiny: dict) -> Path:
    folder = tmp_path_factory.mktemp("looking")
    for name, method in (("a", "fedavg"), ("b", "fedper")):
        polyfed.run(tiny | KEYS, method=method, out=folder / name)
    return folder


def test_every_class_once_before_any_comes_twice() -> None:
    y = torch.tensor([2, 2, 0, 2, 0, 1])
    held = Samples.of(torch.zeros(6, 1), y)
    assert one_of_each(held, 5).tolist() == [2, 5, 0, 4, 1]
    assert one_of_each(held, 9).tolist() == [2, 5, 0, 4, 1, 3]


def test_the_clients_own_test_images_under_each_runs_model(runs_of: Path) -> None:
    chart = maps_of_runs(select([runs_of / "a", runs_of / "b"]), "1", 2)
    assert [panel.title.partition(": ")[2] for panel in chart.panels] == ["", "fedavg", "fedper"] * 2
    held = polyfed.federation(runs_of / "a" / "config.yaml").clients[1].test
    rows = one_of_each(held, 2)
    for line, row in enumerate(rows.tolist()):
        picture, *maps = (panel.marks[0].values for panel in chart.panels[3 * line : 3 * line + 3])
        assert np.allclose(picture, held.pool.x[row].float().mean(0))
        x, y = held.pool.prepare(held.pool.rows(rows)), held.pool.y[rows].long()
        for name, found in zip("ab", maps, strict=True):
            net = polyfed.load(runs_of / name).client(1).model
            assert np.allclose(found, activation_maps(net, x, y)[line], atol=1e-5)


def test_the_command_draws_it_with_its_data(cli: Cli, runs_of: Path, tmp_path: Path) -> None:
    words = ["figure", "maps", str(runs_of / "a"), "--out", str(tmp_path / "x.png")]
    said = cli(*words, "--global", "--images", "1")
    assert said.code == 0, said.err
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert len(pandas.read_csv(tmp_path / "x.csv")) == 2 * 16 * 16
    for more, told in (([], "say whose model"), (["--client", "99"], "99")):
        said = cli(*words, *more)
        assert (said.code, said.err.count("\n")) == (2, 1)
        assert told in said.err
    said = cli("figure", "rounds", str(runs_of / "a"), "--out", str(tmp_path / "y.png"), "--images", "2")
    assert "are for the figure maps, not for 'rounds'" in said.err


def test_what_has_no_maps_is_one_sentence(cli: Cli, runs_of: Path, tmp_path: Path, tiny: dict) -> None:
    polyfed.run(tiny | KEYS, method="fedper", out=tmp_path / "small", **{"data.size": 20})
    numbers = {"split.clients": 2, "model.name": "mlp", "data": (np.eye(40, 6, dtype=np.float32), np.arange(40) % 2)}
    polyfed.run(tiny | numbers, out=tmp_path / "numbers")
    out = ["--out", str(tmp_path / "x.png"), "--client", "0"]
    for paths, told in (
        ([runs_of / "a", tmp_path / "small"], "images of another size than the first"),
        ([tmp_path / "numbers"], "arrays holds none"),
    ):
        said = cli("figure", "maps", *map(str, paths), *out)
        assert told in said.err
        assert said.err.count("\n") == 1
