"""Which data sets are here."""

from pathlib import Path

import pytest

from polyfed.papers.at_hand import is_here


def test_the_digits_alone_do_not_bring_their_writers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYFED_DATA", str(tmp_path))
    (tmp_path / "mnist").mkdir()
    assert not is_here("mnist")
    (tmp_path / "mnist" / "train-images-idx3-ubyte").touch()
    assert is_here("mnist")
    assert not is_here("mnist-writers")
    (tmp_path / "mnist" / "writers-train.npy").touch()
    assert is_here("mnist-writers")
