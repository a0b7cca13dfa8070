"""UCI HAR's text folders."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyfed.data.federation import federation
from polyfed.data.partition import Iid, Users
from polyfed.data.sources import sources
from polyfed.data.sources.har import CHANNELS, UciHar
from polyfed.errors import DataError, UsageError

PEOPLE = {"train": [1, 1, 1, 3, 3, 3], "test": [2, 2, 2, 2]}


REAL = Path(__file__).parents[2].parent / "shared" / "data" / "uci_har.npz"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Ten windows of three people."""
    rng = np.random.default_rng(0)
    for part, people in PEOPLE.items():
        folder = tmp_path / "UCI HAR Dataset" / part / "Inertial Signals"
        folder.mkdir(parents=True)
        for k, channel in enumerate(CHANNELS):
            np.savetxt(
                folder / f"{channel}_{part}.txt", rng.normal(k, k + 1, (len(people), 128)), fmt=" %15.7e", delimiter=""
            )
        np.savetxt(folder.parent / f"y_{part}.txt", np.arange(len(people)) % 6 + 1, fmt="%d")
        np.savetxt(folder.parent / f"subject_{part}.txt", people, fmt="%d")
    return tmp_path


def test_windows_are_channels_first_and_standardised(small: Path, wish: Any) -> None:
    data = UciHar(root=small).load()
    assert data.x.shape == (10, 9, 128)
    assert data.train == 6
    assert data.user_names == ("subject 1", "subject 2", "subject 3")
    assert UciHar(root=small / "UCI HAR Dataset").load().train == 6
    fed = federation(UciHar(root=small), wish(Iid(), 1, test="none"), 0)
    x, _ = fed.clients[0].train.take(fed.clients[0].train.rows)
    assert np.allclose(x.mean((0, 2)), 0, atol=1e-4)
    assert np.allclose(x.std((0, 2)), 1, atol=1e-2)
    assert len(fed.global_test) == 4


def test_a_subject_holds_its_rows_of_both_parts(small: Path, wish: Any) -> None:
    fed = federation(UciHar(root=small), wish(Users(), None, test=0.25), 0)
    assert [(c.name, len(c.train), len(c.test)) for c in fed.clients] == [
        ("subject 1", 2, 1),
        ("subject 2", 3, 1),
        ("subject 3", 2, 1),
    ]


def test_subjects_are_chosen(small: Path) -> None:
    data = UciHar(root=small, subjects=[3, 2]).load()
    assert data.user_names == ("subject 2", "subject 3")
    assert (data.train, len(data.y)) == (3, 7)
    assert UciHar(root=small, subjects=[2]).load().train == 0
    with pytest.raises(DataError, match=r"none of the subjects \[30\]"):
        UciHar(root=small, subjects=[30]).load()
    with pytest.raises(UsageError, match=r"'data.subjects': expected 'all', 'distfl' or a list of subjects"):
        sources.build({"name": "uci-har", "subjects": [31]}, "data")


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        (
            "train/Inertial Signals/body_acc_y_train.txt",
            "1.0 2.0\n",
            r"\[1, 2\] numbers where \[6, 128\] were expected",
        ),
        ("train/Inertial Signals/total_acc_z_train.txt", "one two\n", "is not a table of numbers"),
        ("train/subject_train.txt", "1\n", "6 labels but 1 subjects"),
        ("test/y_test.txt", None, "y_test.txt is missing; `polyfed data get uci-har`"),
    ],
)
def test_damaged_files_are_refused(small: Path, file: str, content: str | None, says: str) -> None:
    path = small / "UCI HAR Dataset" / file
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    with pytest.raises(DataError, match=says):
        UciHar(root=small).load()


@pytest.fixture
def real_people(tmp_path: Path) -> Path:
    """The official labels and subjects; the signals, which would take ten seconds to write, are flat."""
    if not REAL.is_file():
        pytest.skip("skipped: no data")
    with np.load(REAL, allow_pickle=False) as real:
        part, y, subject = real["split"], real["y"], real["subject"]
    for code, name in enumerate(("train", "test")):
        rows = part == code
        folder = tmp_path / name / "Inertial Signals"
        folder.mkdir(parents=True)
        for channel in CHANNELS:
            (folder / f"{channel}_{name}.txt").write_text(("0 " * 128 + "\n") * int(rows.sum()))
        np.savetxt(folder.parent / f"y_{name}.txt", y[rows].astype(int) + 1, fmt="%d")
        np.savetxt(folder.parent / f"subject_{name}.txt", subject[rows].astype(int), fmt="%d")
    return tmp_path


def test_real_subjects_give_the_denominators_of_distfl_table_4(real_people: Path, wish: Any) -> None:
    fed = federation(UciHar(root=real_people, subjects="distfl"), wish(Users(), None, test=0.25), 0)
    tests = [87, 76, 86, 76, 82, 77, 71, 72, 79, 80, 82, 92, 90, 102, 81, 96, 98, 96, 86, 96]
    assert [len(client.test) for client in fed.clients] == tests
    assert sum(len(client.train) for client in fed.clients) == 5089
    assert len(fed.global_test) == 1705
