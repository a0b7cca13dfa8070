"""Tiny ImageNet, CINIC-10 and SVHN in small, in their official layouts; CIFAR-100's superclasses."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from polyfed.data.sources.cifar import TEN, Cifar100
from polyfed.data.sources.photographs import Cinic10, Svhn, TinyImageNet
from polyfed.errors import DataError


def draw(file: Path, value: int, side: int, grey: bool = False) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    shape = (side, side) if grey else (side, side, 3)
    Image.fromarray(np.full(shape, value, np.uint8)).save(file)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    top = tmp_path / "tiny-imagenet-200"
    for c, name in enumerate(("n02124075", "n01443537")):
        for i in range(3):
            draw(top / "train" / name / "images" / f"{name}_{i}.JPEG", 100 * c + 50, 64, grey=i == 1)
    for i in range(2):
        draw(top / "val" / "images" / f"val_{i}.JPEG", 9, 64)
    (top / "wnids.txt").write_text("n02124075\nn01443537\n")
    (top / "words.txt").write_text("n01443537\tgoldfish, Carassius auratus\nn02124075\tEgyptian cat\n")
    (top / "val" / "val_annotations.txt").write_text(
        "val_0.JPEG\tn01443537\t0\t0\t9\t9\nval_1.JPEG\tn02124075\t0\t0\t9\t9\n"
    )
    return tmp_path


def test_tiny_imagenets_validation_part_is_the_test(tiny: Path) -> None:
    data = TinyImageNet(root=tiny).load()
    assert data.x.shape == (8, 64, 64, 3)
    assert (data.train, data.y.tolist()) == (6, [0, 0, 0, 1, 1, 1, 1, 0])
    assert data.class_names == ("Egyptian cat", "goldfish")
    assert TinyImageNet(root=tiny / "tiny-imagenet-200", size=32).load().x.shape == (8, 32, 32, 3)


def test_a_broken_tiny_imagenet_is_one_sentence(tiny: Path) -> None:
    listed = tiny / "tiny-imagenet-200" / "val" / "val_annotations.txt"
    listed.write_text("val_0.JPEG\tn99999999\n")
    with pytest.raises(DataError, match=r"a line names no class of wnids.txt; `polyfed data get tiny-imagenet`"):
        TinyImageNet(root=tiny).load()
    (tiny / "tiny-imagenet-200" / "wnids.txt").unlink()
    with pytest.raises(DataError, match=r"wnids.txt is missing; `polyfed data get tiny-imagenet`"):
        TinyImageNet(root=tiny).load()


def test_cinic10_trains_on_the_validation_part_if_told(tmp_path: Path) -> None:
    for p, part in enumerate(("train", "valid", "test")):
        for c, name in enumerate(TEN):
            draw(tmp_path / part / name / "cifar10-train-1.png", 20 * c + p, 32)
    data = Cinic10(root=tmp_path).load()
    assert (data.train, len(data.y), data.class_names) == (10, 20, TEN)
    assert data.x[:, 0, 0, 0].tolist() == [20 * c for c in range(10)] + [20 * c + 2 for c in range(10)]
    more = Cinic10(root=tmp_path, valid=True).load()
    assert (more.train, len(more.y), more.x[13, 0, 0, 0]) == (20, 30, 61)
    (tmp_path / "test" / "frog" / "cifar10-train-1.png").unlink()
    (tmp_path / "test" / "frog").rmdir()
    with pytest.raises(DataError, match=r"test/frog is missing; `polyfed data get cinic10`"):
        Cinic10(root=tmp_path).load()


def test_house_numbers_come_from_matlab_files(tmp_path: Path) -> None:
    for part, n in (("train", 11), ("test", 3)):
        x = np.broadcast_to(np.arange(n, dtype=np.uint8), (32, 32, 3, n)).copy()
        x[0, 5, 2] = 99
        savemat(tmp_path / f"{part}_32x32.mat", {"X": x, "y": (np.arange(n) % 10 + 1)[:, None].astype(np.uint8)})
    data = Svhn(root=tmp_path).load()
    assert (data.x.shape, data.train) == ((14, 32, 32, 3), 11)
    assert data.y.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 1, 2, 3]
    assert data.x[4, 0, 5].tolist() == [4, 4, 99]
    savemat(tmp_path / "test_32x32.mat", {"X": x.astype(np.float32), "y": np.ones((3, 1))})
    with pytest.raises(DataError, match=r"test_32x32.mat is damaged: float32"):
        Svhn(root=tmp_path).load()
    (tmp_path / "test_32x32.mat").write_bytes(b"MATLAB?")
    with pytest.raises(DataError, match=r"is not a readable .mat file with X and y .*polyfed data get svhn"):
        Svhn(root=tmp_path).load()


def test_cifar100_has_superclasses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cifar100, "files", {"train.bin": 4, "test.bin": 2})
    for file, n in Cifar100.files.items():
        raw = np.zeros((n, 3074), np.uint8)
        raw[:, 0], raw[:, 1] = 10 + np.arange(n), 90 + np.arange(n)
        raw.tofile(tmp_path / file)
    assert Cifar100(root=tmp_path).load().y.tolist() == [90, 91, 92, 93, 90, 91]
    data = Cifar100(root=tmp_path, labels="coarse").load()
    assert (data.y.tolist(), data.classes, data.class_names[19]) == ([10, 11, 12, 13, 10, 11], 20, "19")
    (tmp_path / "coarse_label_names.txt").write_text("\n".join(f"super{c}" for c in range(20)))
    assert Cifar100(root=tmp_path, labels="coarse").load().class_names[10] == "super10"
