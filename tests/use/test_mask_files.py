"""Masks as files: classes as pixel values, at the picture's own size, and what an export says of them."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import masked
import polyfed
from polyfed.use.export import read


def test_predicted_masks_of_an_export(tmp_path: Path, cli: Any) -> None:
    run = tmp_path / "run"
    result = polyfed.run(**masked.settings(method="fedavg", out=run, rounds=1))
    export = result.export("safetensors", out=tmp_path / "export")
    assert "miou" in (export / "card.md").read_text(encoding="utf-8")
    assert json.loads((export / "classes.json").read_text())[1] == {"name": "1", "colour": [80, 124, 230]}
    assert json.loads((run / "federation.json").read_text())["colours"][1] == [80, 124, 230]
    assert read(export).class_names == ("0", "1", "2")
    x, _ = masked.scenes(2)
    for row in range(2):
        masked.picture(tmp_path / "new" / f"{row}.png", x[row])
    out = tmp_path / "masks"
    words = ["predict", str(export), "--input", str(tmp_path / "new"), "--out", str(out)]
    assert cli(*words).code == 0
    assert sorted(path.name for path in out.iterdir()) == [
        "0.png", "0_overlay.png", "1.png", "1_overlay.png", "shares.csv",
    ]  # fmt: skip
    with Image.open(out / "0.png") as picture:
        assert (picture.mode, picture.size) == ("P", (masked.WIDE, masked.HIGH))
        said = np.array(picture)
    assert np.array_equal(said, result.global_model().predict(x[:1])[0])
    with (out / "shares.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["file"] for row in rows] == ["0.png"] * 3 + ["1.png"] * 3
    assert sum(float(row["share"]) for row in rows) == pytest.approx(2, abs=1e-5)
    again = cli(*words)
    assert again.code == 2
    assert "masks never overwrite" in again.err


@pytest.mark.parametrize("form", ["safetensors", pytest.param("torch-export", marks=pytest.mark.slow)])
def test_who_learnt_the_background_as_a_class_answers_without_it(tmp_path: Path, form: str) -> None:
    data = masked.source(background="class")
    result = polyfed.run(**masked.settings(method="fedavg", data=data, rounds=1, out=tmp_path / "run"))
    x, _ = masked.scenes(2)
    ours, theirs = result.global_model(), read(result.export(form, out=tmp_path / "export"))
    assert ours.logits(x).shape == (2, masked.CLASSES, masked.HIGH, masked.WIDE)
    assert np.allclose(ours.logits(x), theirs.logits(x), atol=1e-4)
