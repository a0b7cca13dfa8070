"""Masks as files: classes as pixel values, at the picture's own size, and what an export says of them."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import masked
import polyfed
from polyfed.data.colours import colours
from polyfed.data.inputs import Inputs
from polyfed.errors import RunFailed
from polyfed.use.export import read
from polyfed.use.mask_files import masks_of


def test_predicted_masks_of_an_export(tmp_path: Path, cli: Any) -> None:
    run = tmp_path / "run"
    result = polyfed.run(**masked.settings(method="fedavg", out=run, rounds=1))
    export = result.export("safetensors", out=tmp_path / "export")
    card = (export / "card.md").read_text(encoding="utf-8")
    assert "miou: mean intersection over union" in card
    last = [row for row in csv.DictReader((run / "classes.csv").open()) if row["measure"] == "global"][-3:]
    by_class = ", ".join(f"{row['class']} {100 * float(row['iou']):.1f} %" for row in last)
    assert f"IoU by class of the global model, round 1: {by_class}." in card
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
    with Image.open(out / "0_overlay.png") as picture:
        assert np.abs(2 * np.array(picture, int) - x[0] - np.array(colours(("0", "1", "2")), int)[said]).max() <= 1
    asked = cli(*words[:4])
    said_alone = [float(row["share"]) for row in csv.DictReader(io.StringIO(asked.out))]
    assert said_alone == pytest.approx([float(row["share"]) for row in rows], abs=1e-6)
    listed = json.loads(cli(*words[:4], "--json").out)
    assert [(row["file"], row["class"], row["name"]) for row in listed[:3]] == [("0.png", c, str(c)) for c in range(3)]
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


def test_a_mask_has_the_size_of_its_picture_and_not_of_the_network(tmp_path: Path, cli: Any) -> None:
    """Logits are spread to the picture's own size, and only then is a class chosen."""
    result = polyfed.run(**masked.settings(data=masked.source(size=[8, 10]), rounds=1, out=tmp_path / "run"))
    x, _ = masked.scenes(1)
    masked.picture(tmp_path / "new" / "0.png", x[0])
    out = tmp_path / "masks"
    words = ["predict", str(tmp_path / "run"), "--global", "--input", str(tmp_path / "new"), "--out", str(out)]
    assert cli(*words).code == 0
    with Image.open(out / "0.png") as picture:
        found = np.array(picture)
    logits = result.global_model().logits(x)
    assert logits.shape[2:] == (8, 10)
    expected = torch.nn.functional.interpolate(logits, size=(12, 16), mode="bilinear", align_corners=False).argmax(1)
    assert np.array_equal(found, expected[0].numpy())


@pytest.mark.slow
def test_a_graph_of_masks_takes_any_number_of_pictures(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="skipped: no onnxruntime")
    pytest.importorskip("onnxscript", reason="skipped: no onnxscript")
    result = polyfed.run(**masked.settings(method="fedavg", rounds=1, out=tmp_path / "run"))
    session = onnxruntime.InferenceSession(result.export("onnx", out=tmp_path / "export") / "model.onnx")
    ours = result.global_model()
    for count in (1, 5):
        x = masked.scenes(count)[0]
        (found,) = session.run(None, {"x": ours.preparation.tensor(x).numpy()})
        assert found.shape == (count, masked.CLASSES, masked.HIGH, masked.WIDE)
        assert np.allclose(found, ours.logits(x), atol=1e-4)


def test_pixels_that_no_class_has_are_one_sentence() -> None:
    logits = torch.zeros(1, 2, 4, 4)
    logits[0, :, 1, 2] = torch.nan
    with pytest.raises(RunFailed, match="some pixels no class: its logits are not finite"):
        masks_of(logits, Inputs("row", ["0"], np.zeros((1, 4, 4, 3), np.uint8)), Path("x.npy"))


def test_pictures_whose_masks_would_have_one_name_are_refused(tmp_path: Path, cli: Any) -> None:
    polyfed.run(**masked.settings(rounds=1, out=tmp_path / "run"))
    x, _ = masked.scenes(2)
    words = ["predict", str(tmp_path / "run"), "--global", "--input", str(tmp_path / "new"), "--out"]
    masked.picture(tmp_path / "new" / "a.png", x[0])
    for at, (other, file) in enumerate([("a.jpg", "a.png"), ("a_overlay.png", "a_overlay.png")]):
        masked.picture(tmp_path / "new" / other, x[1])
        said = cli(*words, str(tmp_path / str(at)))
        assert said.code == 2
        assert f"would both be called {file}: rename one" in said.err
        assert not (tmp_path / str(at)).exists()
        (tmp_path / "new" / other).unlink()
