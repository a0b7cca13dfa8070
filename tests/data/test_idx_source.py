"""MNIST's files."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyfed.data.federation import federation
from polyfed.data.partition import Dirichlet, Iid, Users
from polyfed.data.sources.idx import FashionMnist, Mnist
from polyfed.errors import DataError

SIDE = 4


def idx(array: np.ndarray, kind: int = 8) -> bytes:
    return bytes([0, 0, kind, array.ndim]) + np.array(array.shape, ">i4").tobytes() + array.astype(np.uint8).tobytes()


def files(folder: Path, train: int = 12, test: int = 5, ending: str = "") -> dict[str, Path]:
    """A tiny data set in MNIST's layout."""
    folder.mkdir(parents=True, exist_ok=True)
    made = {}
    rng = np.random.default_rng(0)
    for stem, n in (("train", train), ("t10k", test)):
        arrays = {
            f"{stem}-images-idx3-ubyte": rng.integers(0, 256, (n, SIDE, SIDE)),
            f"{stem}-labels-idx1-ubyte": np.arange(n) % 10,
        }
        for name, array in arrays.items():
            made[name] = folder / (name + ending)
            made[name].write_bytes(gzip.compress(idx(array)) if ending else idx(array))
    return made


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_plain_and_gzipped_files_are_read(tmp_path: Path, ending: str) -> None:
    files(tmp_path, ending=ending)
    data = Mnist(root=tmp_path).load()
    assert data.x.shape == (17, SIDE, SIDE, 1)
    assert data.train == 12
    assert data.y.tolist() == [*range(10), 0, 1, 0, 1, 2, 3, 4]
    assert data.mean == (pytest.approx(255 * 0.1307),)


def test_the_folder_comes_from_root_environment_or_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLYFED_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert Mnist().home() == tmp_path / "me" / ".cache" / "polyfed" / "mnist"
    monkeypatch.setenv("POLYFED_DATA", str(tmp_path / "there"))
    assert Mnist().home() == tmp_path / "there" / "mnist"
    assert Mnist(root=tmp_path).home() == tmp_path
    files(tmp_path / "there" / "mnist")
    assert Mnist().load().train == 12


def test_a_missing_file_is_named_with_the_command_that_brings_it(tmp_path: Path) -> None:
    files(tmp_path)["t10k-labels-idx1-ubyte"].unlink()
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte is missing; `polyfed data get mnist`") as error:
        Mnist(root=tmp_path).load()
    assert error.value.exit_code == 3


@pytest.mark.parametrize("keep", [0, 3, 17, -1])
def test_a_truncated_file_is_refused(tmp_path: Path, keep: int) -> None:
    file = files(tmp_path)["train-images-idx3-ubyte"]
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(
        DataError, match=r"train-images-idx3-ubyte is (damaged|not an idx file).*polyfed data get mnist"
    ):
        Mnist(root=tmp_path).load()


def test_a_wrong_magic_number_is_refused(tmp_path: Path) -> None:
    file = files(tmp_path)["train-labels-idx1-ubyte"]
    file.write_bytes(idx(np.arange(12), kind=13))
    with pytest.raises(DataError, match="is not an idx file of bytes with 1 dimension"):
        Mnist(root=tmp_path).load()


def test_different_counts_are_refused(tmp_path: Path) -> None:
    file = files(tmp_path)["train-labels-idx1-ubyte"]
    file.write_bytes(idx(np.arange(9)))
    with pytest.raises(DataError, match="holds 12 images for 9 labels"):
        Mnist(root=tmp_path).load()


def test_labels_out_of_range_are_refused(tmp_path: Path) -> None:
    files(tmp_path)["train-labels-idx1-ubyte"].write_bytes(idx(np.full(12, 11)))
    with pytest.raises(DataError, match="labels run from 0 to 11, expected 0 to 9"):
        Mnist(root=tmp_path).load()


@pytest.mark.parametrize("harm", ["cut", "changed", "foreign"])
def test_a_corrupt_gzip_file_is_refused(tmp_path: Path, harm: str) -> None:
    file = files(tmp_path, ending=".gz")["train-images-idx3-ubyte"]
    raw = file.read_bytes()
    middle = len(raw) // 2
    harmed = {"cut": raw[:middle], "changed": raw[:middle] + b"\xff\xff\xff" + raw[middle + 3 :], "foreign": b"<html>"}
    file.write_bytes(harmed[harm])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.gz cannot be read"):
        Mnist(root=tmp_path).load()


def test_writers_beside_the_files_are_users(tmp_path: Path, wish: Any) -> None:
    files(tmp_path)
    np.save(tmp_path / "writers-train.npy", np.repeat([40, 7, 22], 4).astype(np.int32))
    np.save(tmp_path / "writers-test.npy", np.full(5, 99, np.int32))
    fed = federation(Mnist(root=tmp_path), wish(Users(), None), 0)
    assert [client.name for client in fed.clients] == ["7", "22", "40"]
    assert len(fed.global_test) == 5


def test_writers_that_would_execute_are_refused(tmp_path: Path) -> None:
    files(tmp_path)
    for part in ("train", "test"):
        np.save(tmp_path / f"writers-{part}.npy", np.array([object()]))
    with pytest.raises(DataError, match=r"writers-.*cannot be read"):
        Mnist(root=tmp_path).load()


@pytest.fixture(scope="module")
def fashion() -> FashionMnist:
    if not (FashionMnist.debian / "train-images-idx3-ubyte.gz").is_file():
        pytest.skip("skipped: no data")
    return FashionMnist(root=FashionMnist.debian)


@pytest.mark.parametrize(("factor", "total"), [(1, 60_000), (10, 24_516), (50, 16_796), (100, 14_886)])
def test_real_fashion_mnist_has_the_published_long_tails(
    fashion: FashionMnist, wish: Any, factor: float, total: int
) -> None:
    fed = federation(fashion, wish(Dirichlet(min=10), 50, longtail=factor), 0)
    said = fed.describe()
    assert said["total"] == total
    assert said["imbalance_factor"] == factor
    assert said["global_test"] == 10_000
    assert min(c["train"] + c["test"] for c in said["clients"]) >= 10


def test_real_fashion_mnist_is_standardised_by_its_constants(fashion: FashionMnist, wish: Any) -> None:
    fed = federation(fashion, wish(Iid(), 10), 0)
    x = fed.pool.prepare(fed.pool.x[:20_000])
    assert abs(float(x.mean())) < 0.02
    assert abs(float(x.std()) - 1) < 0.02
