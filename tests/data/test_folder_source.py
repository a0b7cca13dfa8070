"""One folder per client."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from polyfed.data.federation import federation
from polyfed.data.partition import Domains, Users
from polyfed.data.sources import sources
from polyfed.data.sources.folder import Folder
from polyfed.data.split import split_alone
from polyfed.errors import DataError, UsageError


def picture(path: Path, side: int = 6, value: int = 10, mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (side, side, 3) if mode == "RGB" else (side, side)
    Image.fromarray(np.full(shape, value, np.uint8)).save(path)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for client, kinds in {"berlin": ("cat", "dog"), "rome": ("dog", "eel")}.items():
        for kind in kinds:
            for i in range(4):
                picture(tmp_path / client / kind / f"{i}.png", value=10 * i)
    return tmp_path


def test_class_folders_of_images(pictures: Path, wish: Any) -> None:
    fed = federation(Folder(root=pictures), wish(Users(), None), 0)
    assert fed.class_names == ("cat", "dog", "eel")
    assert [client.name for client in fed.clients] == ["berlin", "rome"]
    assert fed.shape == (3, 6, 6)
    assert [(len(c.train), len(c.test)) for c in fed.clients] == [(6, 2), (6, 2)]
    assert len(fed.global_test) == 4
    assert fed.pool.mean is not None
    assert torch.equal(fed.pool.mean, torch.full((3, 6, 6), 15.0))


def test_sub_folders_are_domains_too(pictures: Path, wish: Any) -> None:
    fed = federation(Folder(root=pictures), wish(Domains(), 4), 0)
    assert [client.name for client in fed.clients] == ["berlin-0", "berlin-1", "rome-2", "rome-3"]


def test_grey_pictures_stay_grey_unless_there_are_coloured_ones(tmp_path: Path) -> None:
    picture(tmp_path / "a" / "x" / "0.png", mode="L")
    picture(tmp_path / "b" / "x" / "0.png", mode="L")
    assert Folder(root=tmp_path).load().x.shape == (2, 6, 6, 1)
    picture(tmp_path / "b" / "x" / "1.jpg")
    assert Folder(root=tmp_path).load().x.shape == (3, 6, 6, 3)


def test_differing_sizes_name_the_file_unless_a_size_is_given(pictures: Path) -> None:
    picture(pictures / "rome" / "eel" / "big.png", side=9)
    with pytest.raises(DataError, match=r"big.png are uint8 \[9, 9, 3\].*data.size=N gives all images one side"):
        Folder(root=pictures).load()
    assert Folder(root=pictures, size=5).load().x.shape == (17, 5, 5, 3)


def test_a_broken_image_is_named(pictures: Path) -> None:
    (pictures / "rome" / "eel" / "0.png").write_bytes(b"not a picture")
    with pytest.raises(DataError, match=r"0.png is not a readable image"):
        Folder(root=pictures).load()


def test_other_files_are_counted_and_hidden_ones_ignored(pictures: Path, wish: Any) -> None:
    (pictures / "rome" / "eel" / "notes.txt").write_text("hm")
    (pictures / "rome" / "eel" / ".hidden").write_text("hm")
    fed = federation(Folder(root=pictures), wish(Users(), None), 0)
    assert fed.describe()["notes"]["files_skipped"] == 1
    (pictures / "rome" / "loose.png").write_bytes((pictures / "rome" / "eel" / "0.png").read_bytes())
    (pictures / "README.md").write_text("hm")
    assert Folder(root=pictures).load().notes == {"files_skipped": 3}, "beside class folders and clients, too"


def test_npz_files(tmp_path: Path, wish: Any) -> None:
    rng = np.random.default_rng(0)
    for client, n in (("a", 10), ("b", 6)):
        (tmp_path / client).mkdir()
        np.savez(tmp_path / client / "one.npz", x=rng.normal(size=(n, 3, 8)), y=np.arange(n) % 4)
    np.savez(tmp_path / "b" / "two.npz", x=rng.normal(size=(4, 3, 8)), y=np.full(4, 5))
    fed = federation(Folder(root=tmp_path), wish(Users(), None), 0)
    assert fed.shape == (3, 8)
    assert fed.classes == 6
    assert [len(c.train) + len(c.test) for c in fed.clients] == [10, 10]
    assert fed.pool.mean is None


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": np.array([object()] * 3), "y": np.arange(3)}, "not a readable .npz file of plain numbers"),
        ({"x": np.zeros((3, 2))}, "must hold the arrays x and y"),
        ({"x": np.zeros((3, 2)), "y": np.arange(4)}, r"x of .*bad.npz: 3 samples but 4 labels"),
        (
            {"x": np.zeros((3, 2)), "y": np.array([0.5, 1, 2])},
            r"labels must be whole numbers or words \[N\], not float64",
        ),
        ({"x": np.zeros((3, 2)), "y": np.array([0, -1, 2])}, "labels run from -1 to 2"),
        ({"x": np.full((3, 2), np.nan), "y": np.arange(3)}, "row 0 holds a value that is not a finite number"),
        ({"x": np.array([["a", "b"]] * 3), "y": np.arange(3)}, "samples must be an array of numbers"),
        ({"x": np.zeros((3, 3, 8, 8), np.uint8), "y": np.arange(3)}, r"looks like \[N, C, H, W\]"),
    ],
)
def test_bad_npz_files_get_one_sentence(tmp_path: Path, arrays: dict[str, np.ndarray], says: str) -> None:
    (tmp_path / "a").mkdir()
    np.savez(tmp_path / "a" / "bad.npz", **arrays)
    with pytest.raises(DataError, match=says):
        Folder(root=tmp_path).load()


def test_a_truncated_npz_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    file = tmp_path / "a" / "cut.npz"
    np.savez_compressed(file, x=np.zeros((30, 2)), y=np.arange(30))
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(DataError, match=r"cut.npz is not a readable"):
        Folder(root=tmp_path).load()


def test_arrays_of_differing_shapes_name_both_files(tmp_path: Path) -> None:
    for client, width in (("a", 2), ("b", 3)):
        (tmp_path / client).mkdir()
        np.savez(tmp_path / client / "d.npz", x=np.zeros((3, width)), y=np.arange(3))
    with pytest.raises(DataError, match=r"b/d.npz are float32 \[3\], those of .*a/d.npz float32 \[2\]"):
        Folder(root=tmp_path).load()


def test_npz_files_may_bring_a_test(tmp_path: Path, wish: Any) -> None:
    for client, tests in (("a", 5), ("b", 0)):
        (tmp_path / client).mkdir()
        more = {"x_test": np.zeros((tests, 2)), "y_test": np.zeros(tests, int)} if tests else {}
        np.savez(tmp_path / client / "d.npz", x=np.zeros((10, 2)), y=np.arange(10) % 2, **more)
    fed = federation(Folder(root=tmp_path), wish(Users(), None), 0)
    assert [(len(c.train), len(c.test)) for c in fed.clients] == [(10, 5), (8, 2)]
    np.savez(tmp_path / "a" / "d.npz", x=np.zeros((10, 2)), y=np.arange(10) % 2, x_test=np.zeros((1, 2)))
    with pytest.raises(DataError, match=r"d.npz must hold the arrays x and y, and may hold x_test and y_test"):
        Folder(root=tmp_path).load()


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """A table of numbers for each of two clients; one has a test of its own."""
    for client, parts in (("a", ["train", "train", "test"]), ("b", ["train"])):
        (tmp_path / client).mkdir()
        rows = [f"{at},{at / 2},{'cat' if at % 2 else 'dog'},{parts[at % len(parts)]}" for at in range(12)]
        (tmp_path / client / "visits.csv").write_text("\n".join(["age,dose,label,split", *rows]))
    return tmp_path


def test_tables(tables: Path, wish: Any) -> None:
    (tables / "a" / "notes.txt").write_text("hm")
    fed = federation(Folder(root=tables), wish(Users(), None), 0)
    assert fed.class_names == ("cat", "dog")
    assert fed.shape == (2,)
    assert [(c.name, len(c.train), len(c.test)) for c in fed.clients] == [("a", 8, 4), ("b", 9, 3)]
    assert fed.notes == {"files_skipped": 1}


def test_tables_whose_columns_differ_name_both(tables: Path) -> None:
    assert Folder(root=tables).load().columns == ("age", "dose")
    file = tables / "b" / "visits.csv"
    file.write_text(file.read_text().replace("age,dose,", "dose,age,"))
    with pytest.raises(
        DataError, match=r"columns of .*b/visits.csv are dose, age, those of .*a/visits.csv age, dose; "
    ):
        Folder(root=tables).load()


def test_what_a_site_alone_sees_of_its_table(tables: Path, wish: Any) -> None:
    data = Folder(root=tables).of_one(tables / "a")
    split = split_alone(data, wish(Users(), None), 0, 1, ("z", "a"))
    assert [len(rows) for rows in (*split.train, *split.test)] == [0, 8, 0, 4]
    assert split.test[1].tolist() == list(range(8, 12))  # its official test, which is not cut


def test_a_table_of_pictures_that_lie_beside_it(tmp_path: Path) -> None:
    for at, side in enumerate([6, 6, 9, 9]):
        picture(tmp_path / "a" / "scans" / f"{at}.png", side)
    rows = [f"scans/{at}.png,{at % 2}" for at in range(4)]
    (tmp_path / "a" / "list.csv").write_text("\n".join(["path,label", *rows]))
    with pytest.raises(DataError, match=r"scans/2.png are uint8 \[9, 9, 3\].*data.size=N gives all images one side"):
        Folder(root=tmp_path).load()
    made = Folder(root=tmp_path, size=6).load()
    assert made.x.shape == (4, 6, 6, 3)
    assert made.notes == {}


def test_a_table_of_another_client_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "all.csv").write_text("v,label,client\n1,0,a\n2,1,b\n")
    with pytest.raises(DataError, match=r"lies in the folder of one client, and holds rows of 'a' and 'b'"):
        Folder(root=tmp_path).load()


def test_missing_and_empty_folders(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'data.root' must be given for data 'folder'"):
        sources.build("folder", "data")
    with pytest.raises(DataError, match=r"nowhere does not exist; it must hold one sub-folder per client"):
        Folder(root=tmp_path / "nowhere").load()
    with pytest.raises(DataError, match="must hold one sub-folder per client; there are none"):
        Folder(root=tmp_path).load()
    picture(tmp_path / "a" / "x" / "0.png")
    (tmp_path / "b" / "x").mkdir(parents=True)
    with pytest.raises(DataError, match=r"client folder .*b holds no samples"):
        Folder(root=tmp_path).load()
