"""WISDM's features with missing values, and HAPT's raw signals in windows."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyfed
from polyfed.data.federation import Federation, federation
from polyfed.data.partition import Users
from polyfed.data.preparation import filled
from polyfed.data.sources.motion import FEATURES, HAPT, Hapt, Wisdm
from polyfed.errors import DataError

SHARED = Path(__file__).parents[2].parent / "shared" / "data"


def arff(file: Path, rows: list[tuple[int, int, str, np.ndarray]]) -> None:
    """WISDM's file: id, user, the features, the class; a missing number is a question mark."""
    kinds = "{ Walking , Jogging , Upstairs , Downstairs , Sitting , Standing }"
    head = ["@relation person_activity_labeled", "", '@attribute "UNIQUE_ID" numeric', '@attribute "user" numeric']
    head += [f'@attribute "{name}" numeric' for name in FEATURES] + [f'@attribute "class" {kinds}', "", "@data"]
    lines = [
        ",".join([str(i), str(user), *("?" if np.isnan(v) else repr(float(v)) for v in x), kind])
        for i, user, kind, x in rows
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(head + lines) + "\n")


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """Two users with ten rows each; some values of XPEAK are missing, and user 7 has none at all of YPEAK."""
    rows = []
    for i in range(20):
        x = np.full(43, float(i))
        x[FEATURES.index("XPEAK")] = np.nan if i % 5 == 0 else i
        x[FEATURES.index("YPEAK")] = np.nan if i < 10 else i
        rows.append((i + 1, 7 if i < 10 else 33, ("Walking", "Sitting")[i % 2], x))
    arff(tmp_path / "WISDM_ar_v1.1" / Wisdm.file, rows)
    return tmp_path


def test_missing_values_are_told(app: Path) -> None:
    data = Wisdm(root=app).load()
    assert data.x.shape == (20, 43)
    assert (data.user_names, data.class_names[4]) == (("user 7", "user 33"), "Sitting")
    assert data.notes == {"missing_values": 4 + 10}
    fed = polyfed.federation(data={"name": "wisdm", "root": str(app)})
    assert fed.notes["missing_values"] == 14
    assert [client.name for client in fed.clients] == ["user 7", "user 33"]


def test_a_missing_value_is_the_mean_of_its_clients_training_rows(app: Path, wish: Any) -> None:
    fed = federation(Wisdm(root=app), wish(Users(), None, test=0.3), 0)
    raw, made, at = fed.dataset.x, fed.as_trained.x, FEATURES.index("XPEAK")
    assert not np.isnan(made).any()
    assert np.isnan(raw).sum() == 14  # what was loaded stays as it was, for another split
    for client in fed.clients:
        train = client.train.rows.numpy()
        known = [v for v in raw[train, at].tolist() if not np.isnan(v)]
        for row in [*train, *client.test.rows.numpy()]:
            expected = sum(known) / len(known) if np.isnan(raw[row, at]) else raw[row, at]
            assert made[row, at] == pytest.approx(expected)
    other = fed.clients[1].train.rows.numpy()  # user 7 never saw a YPEAK: it takes what the others' training rows say
    assert made[:10, FEATURES.index("YPEAK")] == pytest.approx(raw[other, FEATURES.index("YPEAK")].mean())


def test_the_scale_comes_from_training_rows_alone(app: Path, wish: Any) -> None:
    data = Wisdm(root=app).load()
    assert (data.mean, data.std) == (None, None)
    fed = federation(Wisdm(root=app), wish(Users(), None, test=0.3), 0)
    train = np.sort(np.concatenate(fed.split.train))
    assert fed.dataset.mean[0] == pytest.approx(data.x[train, 0].mean())
    assert fed.dataset.std[0] == pytest.approx(data.x[train, 0].std())
    assert fed.dataset.mean[0] != data.x[:, 0].mean()
    louder = data.x.copy()
    louder[np.concatenate(fed.split.test)] += 1000
    again = Federation(replace(data, x=louder), fed.split)
    assert (again.dataset.mean, again.dataset.std) == (fed.dataset.mean, fed.dataset.std)
    assert again.preparation.mean == fed.preparation.mean  # what is shipped with a model is the same


def test_test_rows_do_not_change_what_is_filled_in() -> None:
    x = np.array([[1, 5], [3, np.nan], [np.nan, 7], [np.nan, 9], [100, np.nan], [np.nan, np.nan]], np.float32)
    train, test = [np.array([0, 1]), np.array([2])], [np.array([3]), np.array([4])]
    made = filled(x, train, test)
    assert made.tolist() == [[1, 5], [3, 5], [2, 7], [2, 9], [100, 7], [2, 6]]
    louder = x.copy()
    louder[3, 1], louder[4, 0] = 1e6, -1e6
    assert filled(louder, train, test)[[0, 1, 2, 5]].tolist() == made[[0, 1, 2, 5]].tolist()
    assert filled(made, train, test) is made


def test_workers_fill_in_the_same_values(app: Path) -> None:
    keys = {"rounds": 1, "model": "mlp", "model.width": 0.1, "train.lr": 0.01}
    data = {"name": "wisdm", "root": str(app)}
    alone, many = (polyfed.run(keys, data=data, **{"engine.workers": n}) for n in (0, 2))
    assert alone.clients.equals(many.clients)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("@data", "% data"), "has no row after @data"),
        (('"RESULTANT"', '"OTHER"'), "has no attribute 'RESULTANT'"),
        ((",Sitting", ",Flying"), "has the activity 'Flying'"),
        ((",3.0,", ",three,"), "is damaged .*three"),
        (("1,7,", "1,7,9,"), "not every row has 46 values"),
    ],
)
def test_a_damaged_table_is_one_sentence(app: Path, change: tuple[str, str], says: str) -> None:
    file = app / "WISDM_ar_v1.1" / Wisdm.file
    file.write_text(
        file.read_text().replace(*change, 1) if change[0] != ",Sitting" else file.read_text().replace(*change)
    )
    with pytest.raises(DataError, match=rf"wisdm: .*{says}"):
        Wisdm(root=app).load()
    file.unlink()
    with pytest.raises(DataError, match=r"wisdm: .*transformed.arff is missing; expected there"):
        Wisdm(root=app).load()


def test_the_real_app(tmp_path: Path) -> None:
    if not (SHARED / "wisdm_trans.npz").is_file():
        pytest.skip("skipped: no data")
    with np.load(SHARED / "wisdm_trans.npz", allow_pickle=False) as real:
        assert tuple(real["feature_names"].tolist()) == FEATURES
        kinds, x, users = real["class_names"][real["y"]], real["X"], real["user"]
    arff(
        tmp_path / Wisdm.file,
        [(i, int(u), str(k), row) for i, (u, k, row) in enumerate(zip(users, kinds, x, strict=True))],
    )
    data = Wisdm(root=tmp_path).load()
    assert (data.x.shape, len(data.user_names), data.notes) == ((5418, 43), 36, {"missing_values": 615})
    assert np.array_equal(data.x, x, equal_nan=True)


def recording(folder: Path, experiment: int, person: int, steps: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for offset, sensor in ((0, "acc"), (1000, "gyro")):
        table = np.arange(steps)[:, None] + offset + np.array([0, 0.25, 0.5])
        np.savetxt(folder / f"{sensor}_exp{experiment:02d}_user{person:02d}.txt", table, fmt="%.4f")


@pytest.fixture
def phone(tmp_path: Path) -> Path:
    folder = tmp_path / "RawData"
    recording(folder, 1, 1, 600)
    recording(folder, 2, 4, 300)
    (folder / "labels.txt").write_text("1 1 5 11 266\n1 1 7 267 350\n1 1 1 401 592\n2 4 12 1 128\n")
    return tmp_path


def test_windows_lie_within_a_segment_and_overlap_by_half(phone: Path) -> None:
    data = Hapt(root=phone).load()
    assert data.x.shape == (3 + 2 + 1, 6, 128)
    assert data.x[:, 0, 0].tolist() == [10, 74, 138, 400, 464, 0]  # segments are counted from 1
    assert data.x[:, 4, -1].tolist() == [start + 127 + 1000.25 for start in (10, 74, 138, 400, 464, 0)]
    assert [HAPT[y] for y in data.y] == ["standing"] * 3 + ["walking"] * 2 + ["lie to stand"]
    assert (data.user_names, data.users.tolist()) == (("user 1", "user 4"), [0] * 5 + [1])
    assert data.notes == {"segments_too_short": 1}


def test_real_segments_give_the_published_number_of_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (SHARED / "hapt_raw.npz").is_file():
        pytest.skip("skipped: no data")
    with np.load(SHARED / "hapt_raw.npz", allow_pickle=False) as real:
        np.savetxt(tmp_path / "labels.txt", real["labels"], fmt="%d")
        steps = dict(zip(real["exp"].tolist(), np.diff(real["offsets"]).tolist(), strict=True))
    # the signals, which would take half a minute to write, are flat
    monkeypatch.setattr(Hapt, "_signal", lambda self, _, experiment, person: np.zeros((6, steps[experiment]), "f4"))
    data = Hapt(root=tmp_path).load()
    assert np.bincount(data.y).tolist() == [1722, 1544, 1407, 1801, 1979, 1958, 70, 33, 107, 85, 139, 84]  # 10929
    assert (len(data.user_names), data.notes) == (30, {"segments_too_short": 40})


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("labels.txt", None, "labels.txt is missing; expected there: labels.txt and acc_exp"),
        ("labels.txt", "1 1 5 500 700\n", "has the segment 500 to 700 in a recording of 600 steps"),
        ("labels.txt", "1 1 13 1 200\n", "strange activity; expected there: numbers from 1 to 12"),
        ("gyro_exp01_user01.txt", None, "gyro_exp01_user01.txt is missing"),
        ("gyro_exp01_user01.txt", "1 2 3\n", "has 1 steps, and acc_exp01_user01.txt has 600"),
        ("acc_exp01_user01.txt", "1 2\n", "is damaged: 3 numbers were expected"),
    ],
)
def test_a_damaged_recording_is_one_sentence(phone: Path, file: str, text: str | None, says: str) -> None:
    path = phone / "RawData" / file
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(DataError, match=rf"hapt: .*{says}"):
        Hapt(root=phone).load()
