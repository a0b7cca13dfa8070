"""The test pictures that a run on masks keeps."""

from pathlib import Path

import numpy as np
from PIL import Image

import masked
import polyfed


def kept(run: Path) -> dict[str, np.ndarray]:
    return {path.name: np.array(Image.open(path)) for path in sorted((run / "samples").glob("*"))}


def test_four_pictures_with_their_truth_and_the_last_answer(tmp_path: Path) -> None:
    keys = masked.settings(data=masked.source(12, 6), method="fedavg", rounds=1)
    result = polyfed.run(**keys, out=tmp_path / "run")
    found = kept(tmp_path / "run")
    places = sorted({name.partition("-")[0] for name in found})
    assert len(places) == 4
    assert len(found) == 12
    x, y = masked.scenes(18)
    for place in places:
        row = 12 + int(place)
        assert np.array_equal(found[f"{place}-picture.png"], x[row])
        assert np.array_equal(found[f"{place}-truth.png"], y[row])
        assert np.array_equal(found[f"{place}-answer.png"], result.global_model().predict(x[row : row + 1])[0])
    polyfed.run(**keys, seed=1, out=tmp_path / "other")
    assert sorted(kept(tmp_path / "other")) != sorted(found), "another seed draws others"


def test_an_oracle_answers_where_there_is_no_global_model(tmp_path: Path) -> None:
    keys = masked.settings(method="fedrep", rounds=1)
    polyfed.run(**keys, out=tmp_path / "without")
    assert not (tmp_path / "without" / "samples").exists()
    polyfed.run(**keys, **{"eval.oracle": True}, out=tmp_path / "with")
    assert len(kept(tmp_path / "with")) == 9, "there are three test pictures"


def test_labels_that_are_no_masks_leave_no_pictures(tmp_path: Path) -> None:
    polyfed.run(data={"name": "digits", "limit": 5}, rounds=1, out=tmp_path / "run", **{"engine.workers": 0})
    assert not (tmp_path / "run" / "samples").exists()
