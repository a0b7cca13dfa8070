"""CIFAR's binary records."""

from pathlib import Path

import numpy as np
import pytest

from polyfed.data.sources.cifar import Cifar10, Cifar100, read_records
from polyfed.data.sources.npm import batch_records
from polyfed.errors import DataError


def records(n: int, label_bytes: int = 1, classes: int = 10) -> np.ndarray:
    raw = np.random.default_rng(n).integers(0, 256, (n, label_bytes + 3072), dtype=np.uint8)
    raw[:, :label_bytes] = (np.arange(n) % classes)[:, None]
    return raw


@pytest.fixture
def ten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """CIFAR-10 with four images per file."""
    small = dict.fromkeys(Cifar10.files, 4)
    monkeypatch.setattr(Cifar10, "files", small)
    for i, file in enumerate(small):
        records(4 + i)[:4].tofile(tmp_path / file)
    return tmp_path


def test_batches_are_read_in_order_and_planes_become_pixels(ten: Path) -> None:
    data = Cifar10(root=ten).load()
    assert data.x.shape == (24, 32, 32, 3)
    assert data.train == 20
    assert data.class_names[6] == "frog"
    first = records(4)[1, 1:]
    assert data.x[1, 0, 5].tolist() == [first[5], first[1024 + 5], first[2048 + 5]]
    assert data.y[:4].tolist() == [0, 1, 2, 3]


def test_the_official_sub_folder_will_do(ten: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    above = tmp_path_factory.mktemp("above")
    ten.rename(above / "cifar-10-batches-bin")
    assert Cifar10(root=above).load().train == 20


def test_truncated_and_missing_batches_are_refused(ten: Path) -> None:
    file = ten / "data_batch_3.bin"
    file.write_bytes(file.read_bytes()[:-3073])
    with pytest.raises(DataError, match=r"data_batch_3.bin is damaged: 9219 bytes where 4 records of 3073 bytes"):
        Cifar10(root=ten).load()
    file.unlink()
    with pytest.raises(DataError, match=r"data_batch_3.bin is missing; `polyfed data get cifar10`"):
        Cifar10(root=ten).load()


def test_the_pickled_version_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"\x80\x02}q")
    with pytest.raises(DataError, match=r"only the pickled \(Python\) version.*polyfed data get cifar10"):
        Cifar10(root=tmp_path).load()
    (tmp_path / "train").write_bytes(b"\x80\x02}q")
    with pytest.raises(DataError, match=r"only the pickled \(Python\) version.*polyfed data get cifar100"):
        Cifar100(root=tmp_path).load()


def test_cifar100_has_the_fine_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cifar100, "files", {"train.bin": 6, "test.bin": 2})
    for file, n in Cifar100.files.items():
        raw = records(n, 2)
        raw[:, 0], raw[:, 1] = 3, 90 + np.arange(n)
        raw.tofile(tmp_path / file)
    data = Cifar100(root=tmp_path).load()
    assert data.y.tolist() == [90, 91, 92, 93, 94, 95, 90, 91]
    assert data.class_names[90] == "90"
    (tmp_path / "fine_label_names.txt").write_text("\n".join(f"kind{c}" for c in range(100)))
    assert Cifar100(root=tmp_path).load().class_names[90] == "kind90"


def test_the_npm_pictures_become_the_official_records(tmp_path: Path) -> None:
    from PIL import Image

    raw = records(5)
    rows = raw[:, 1:].reshape(5, 3, 1024).transpose(0, 2, 1)
    Image.fromarray(np.ascontiguousarray(rows)).save(tmp_path / "batch.png")
    made = batch_records(tmp_path / "batch.png", raw[:, 0])
    assert np.array_equal(made, raw)
    made.tofile(tmp_path / "batch.bin")
    images, labels = read_records(tmp_path / "batch.bin", 1, 5, "cifar10")
    assert np.array_equal(images[2], rows[2].reshape(32, 32, 3))
    assert labels.tolist() == [0, 1, 2, 3, 4]
