"""Natural clients: MNIST's writers, and LEAF's JSON files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyfed
from polyfed.data.federation import federation
from polyfed.data.partition import Users
from polyfed.data.sources.idx import MnistWriters
from polyfed.data.sources.leaf import KEPT, Femnist
from polyfed.errors import DataError

REAL = Path(__file__).parents[2].parent / "shared" / "data" / "mnist_writers.npz"


def mnist(folder: Path, y: np.ndarray, writers: np.ndarray, y_test: np.ndarray, others: np.ndarray) -> None:
    """MNIST's files with flat pictures, and who wrote them."""
    folder.mkdir(parents=True, exist_ok=True)
    for stem, part, labels, people in (("train", "train", y, writers), ("t10k", "test", y_test, others)):
        n = len(labels)
        images = np.array([2051, n, 28, 28], ">i4").tobytes() + bytes(n * 784)
        (folder / f"{stem}-images-idx3-ubyte").write_bytes(images)
        head = np.array([2049, n], ">i4").tobytes()
        (folder / f"{stem}-labels-idx1-ubyte").write_bytes(head + labels.astype(np.uint8).tobytes())
        np.save(folder / f"writers-{part}.npy", people.astype(np.int32))


def test_writers_are_clients_and_others_are_the_global_test(tmp_path: Path) -> None:
    mnist(tmp_path, np.arange(30) % 10, np.repeat([7, 9, 12], 10), np.arange(6), np.full(6, 40))
    fed = polyfed.federation(data={"name": "mnist-writers", "root": str(tmp_path)})
    assert [(client.name, len(client.train) + len(client.test)) for client in fed.clients] == [
        ("7", 10),
        ("9", 10),
        ("12", 10),
    ]
    assert len(fed.global_test) == 6


def test_mnist_without_its_writers_is_one_sentence(tmp_path: Path) -> None:
    mnist(tmp_path, np.arange(4), np.arange(4), np.arange(2), np.arange(2))
    (tmp_path / "writers-test.npy").unlink()
    with pytest.raises(DataError, match=r"mnist-writers: .*writers-train.npy is missing; expected there: the four idx"):
        MnistWriters(root=tmp_path).load()


def test_mnist_writers_find_the_files_of_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYFED_DATA", str(tmp_path))
    mnist(tmp_path / "mnist", np.arange(4), np.arange(4), np.arange(2), np.arange(2) + 9)
    assert MnistWriters().load().train == 4


def test_the_real_writers_of_mnist(tmp_path: Path, wish: Any) -> None:
    if not REAL.is_file():
        pytest.skip("skipped: no data")
    with np.load(REAL, allow_pickle=False) as real:
        mnist(tmp_path, real["y_train"], real["w_train"], real["y_test"], real["w_test"])
    fed = federation(MnistWriters(root=tmp_path), wish(Users(), None), 0)
    sizes = [len(fed.split.held(k)) for k in range(len(fed.clients))]
    assert (len(sizes), min(sizes), max(sizes), sum(sizes)) == (539, 19, 131, 60_000)
    assert len(fed.global_test) == 10_000


def leaf(file: Path, people: dict[str, list[int]], value: float = 0.5) -> None:
    """One of LEAF's files: the first pixel of a sample is its class over 100."""
    file.parent.mkdir(parents=True, exist_ok=True)
    data = {who: {"x": [[c / 100] + [value] * 783 for c in kinds], "y": kinds} for who, kinds in people.items()}
    sizes = [len(kinds) for kinds in people.values()]
    file.write_text(json.dumps({"users": list(people), "num_samples": sizes, "user_data": data}))


@pytest.fixture
def some(tmp_path: Path) -> Path:
    leaf(tmp_path / "data" / "train" / "all_data_0_niid_0_keep_0_train_9.json", {"f0001_41": [0, 61], "f0002_10": [3]})
    leaf(tmp_path / "data" / "train" / "all_data_1_niid_0_keep_0_train_9.json", {"f0003_07": [5, 5, 6]})
    leaf(tmp_path / "data" / "test" / "all_data_0_niid_0_keep_0_test_9.json", {"f0001_41": [0], "f0003_07": [5]})
    return tmp_path


def test_leafs_files_become_arrays_once(some: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Femnist(root=some).load()
    assert first.x.shape == (8, 28, 28, 1)
    assert first.y.tolist() == [0, 61, 3, 5, 5, 6, 0, 5]
    assert (first.train, first.user_names, first.classes) == (6, ("f0001_41", "f0002_10", "f0003_07"), 62)
    assert first.users.tolist() == [0, 0, 1, 2, 2, 2, 0, 2]
    assert first.x[:, 0, 0, 0].tolist() == np.rint(2.55 * first.y).tolist()
    assert set(first.x[:, 3:].ravel()) == {128}
    monkeypatch.setattr(json, "loads", lambda *_: pytest.fail("the files were read again"))
    again = Femnist(root=some).load()
    assert np.array_equal(again.x, first.x)
    assert again.user_names == first.user_names


def test_files_that_changed_are_read_again(some: Path) -> None:
    Femnist(root=some).load()
    leaf(some / "data" / "train" / "another.json", {"f0004_00": [1]})
    assert Femnist(root=some).load().train == 7
    leaf(some / "data" / "train" / "another.json", {"f0004_00": [2]})  # as long as before, at another time
    assert Femnist(root=some).load().y[6] == 2


def test_a_writers_test_rows_are_its_own(some: Path) -> None:
    fed = polyfed.federation(data={"name": "femnist", "root": str(some)})
    assert [(client.name, len(client.train), len(client.test)) for client in fed.clients] == [
        ("f0001_41", 2, 1),
        ("f0002_10", 1, 0),
        ("f0003_07", 3, 1),
    ]


def test_all_data_in_one_folder_will_do(tmp_path: Path) -> None:
    leaf(tmp_path / "data" / "all_data" / "all_data_0.json", {"a": [0, 1, 2]})
    assert Femnist(root=tmp_path).load().train == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"{", "is damaged"),
        (b'{"users": ["a"]}', "has no 'user_data'"),
        (b'{"users": ["a"], "user_data": {}}', "has no 'a'"),
        (b'{"users": ["a"], "user_data": {"a": {"x": [[0, 1]], "y": [1]}}}', "2 numbers where 784 were expected"),
        (json.dumps({"users": ["a"], "user_data": {"a": {"x": [[2] * 784], "y": [1]}}}).encode(), "from 0 to 1"),
        (json.dumps({"users": ["a"], "user_data": {"a": {"x": [[1] * 784], "y": []}}}).encode(), "1 samples but 0"),
    ],
)
def test_damaged_json_is_one_sentence(tmp_path: Path, text: bytes, says: str) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "bad.json").write_bytes(text)
    with pytest.raises(DataError, match=rf"femnist: .*bad.json .*{says}.*; expected there: LEAF's JSON"):
        Femnist(root=tmp_path).load()
    assert not list((tmp_path / KEPT).glob(".making-*"))


def test_no_json_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"femnist: .* holds no JSON file; expected there: LEAF's JSON files in data/train"
    ):
        Femnist(root=tmp_path).load()


def test_3550_writers_are_set_up_from_their_arrays(tmp_path: Path, wish: Any) -> None:
    people = {f"f{k:04d}": [k % 62, (k + 1) % 62] for k in range(3550)}
    short = {who: {"x": [[0] * 784] * 2, "y": kinds} for who, kinds in people.items()}
    (tmp_path / "train").mkdir()
    for part in range(5):
        users = list(people)[part * 710 : (part + 1) * 710]
        content = {"users": users, "user_data": {who: short[who] for who in users}}
        (tmp_path / "train" / f"{part}.json").write_text(json.dumps(content))
    fed = federation(Femnist(root=tmp_path), wish(Users(), None), 0)
    assert len(fed.clients) == 3550
    assert all(len(client.train) == len(client.test) == 1 for client in fed.clients)
