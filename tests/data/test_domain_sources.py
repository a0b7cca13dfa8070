"""PACS, Office-Home and the digits of three makers: what they read, and how a split goes by domain."""

import bz2
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import polyfed
from polyfed.data.federation import federation
from polyfed.data.partition import Domains, Iid
from polyfed.data.sources import sources
from polyfed.data.sources.domains import Digits3, OfficeHome, Pacs
from polyfed.errors import DataError

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
KINDS = ("dog", "house")


def draw(file: Path, value: int, side: int = 12, colours: bool = True) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    shape = (side, side, 3) if colours else (side, side)
    Image.fromarray(np.full(shape, value, np.uint8)).save(file)


@pytest.fixture
def pacs(tmp_path: Path) -> Path:
    """Four domains with two classes of five pictures each; the sketches are grey and larger."""
    for d, domain in enumerate(Pacs.domains):
        for c, kind in enumerate(KINDS):
            for i in range(5):
                grey = domain == "sketch"
                draw(tmp_path / "PACS" / domain / kind / f"{i}.png", 40 * d + 20 * c + i, 20 if grey else 12, not grey)
    (tmp_path / "PACS" / "photo" / "dog" / "readme.txt").write_text("not a picture")
    return tmp_path


def test_pictures_come_with_their_domains_at_one_size(pacs: Path) -> None:
    data = Pacs(root=pacs, size=8).load()
    assert data.x.shape == (40, 8, 8, 3)
    assert (data.train, data.class_names, data.domain_names) == (40, KINDS, Pacs.domains)
    assert np.bincount(data.domains).tolist() == [10] * 4
    assert data.notes == {"files_skipped": 1}
    row = np.flatnonzero((data.domains == 3) & (data.y == 1))[2]
    assert data.x[row].reshape(-1, 3).tolist() == [[3 * 40 + 20 + 2] * 3] * 64  # grey got its channels
    assert Pacs(root=pacs).size == 64
    assert Pacs(root=pacs, size=(6, 8)).load().x.shape == (40, 6, 8, 3)
    with pytest.raises(DataError, match=r"have 12 x 12 and 20 x 20 pixels; data.size=N"):
        Pacs(root=pacs, size="auto").load()


def test_clients_are_cut_from_their_domains(pacs: Path, wish: Any) -> None:
    fed = federation(Pacs(root=pacs, size=8), wish(Domains(), 8, test=0.2), 0)
    assert [client.name for client in fed.clients][:3] == ["photo-0", "photo-1", "art_painting-2"]
    for client in fed.clients:
        rows = np.concatenate([client.train.rows.numpy(), client.test.rows.numpy()])
        assert set(fed.dataset.domains[rows]) == {client.id // 2}
    made = polyfed.federation(data={"name": "pacs", "root": str(pacs), "size": 8})
    assert [client.name for client in made.clients] == [f"{d}-{k}" for k, d in enumerate(Pacs.domains)]


@pytest.mark.parametrize("name", ["cnn", "resnet8", "resnet18", "vgg11", "mlp"])
def test_networks_of_the_zoo_take_64_by_64(name: str) -> None:
    import torch

    from polyfed.models import models

    net = models.build({"name": name, "width": 0.1} if name != "cnn" else name, "model").build((3, 64, 64), 7)
    assert net(torch.zeros(2, 3, 64, 64)).shape == (2, 7)


def test_what_is_missing_is_said_with_the_layout(pacs: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"office-home: .*Art is no folder; expected there: the folders Art, Clipart"):
        OfficeHome(root=pacs).load()
    (pacs / "PACS" / "cartoon" / "guitar").mkdir()
    with pytest.raises(DataError, match=r"cartoon and .*photo do not both have the class 'guitar'"):
        Pacs(root=pacs).load()


def test_office_home_is_read_alike(tmp_path: Path) -> None:
    for domain in OfficeHome.domains:
        draw(tmp_path / domain / "Mug" / "00001.jpg", 100)
    data = OfficeHome(root=tmp_path, size=8).load()
    assert (len(data.y), data.class_names, data.domain_names[3]) == (4, ("Mug",), "Real World")


def idx(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    head = np.array([2048 + array.ndim, *array.shape], ">i4").tobytes()
    path.write_bytes(head + array.astype(np.uint8).tobytes())


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """Twenty training and ten test digits of each maker, in the makers' own layouts."""
    for part, stem, n in (("train", "train", 20), ("test", "t10k", 10)):
        y = np.arange(n) % 10
        idx(tmp_path / "mnist" / f"{stem}-images-idx3-ubyte", np.full((n, 28, 28), 200))
        idx(tmp_path / "mnist" / f"{stem}-labels-idx1-ubyte", y)
        for i in range(n):
            draw(tmp_path / "mnist_m" / f"mnist_m_{part}" / f"{i:08d}.png", 90, 32)
        lines = [f"{i:08d}.png {digit}" for i, digit in enumerate(y)]
        (tmp_path / "mnist_m" / f"mnist_m_{part}_labels.txt").write_text("\n".join(lines) + "\n")
        row = " ".join(f"{at}:{-1 if at <= 96 else 0 if at <= 160 else 1}" for at in range(1, 257))
        text = "\n".join(f"{digit + 1} {row}" for digit in y)
        (tmp_path / "usps").mkdir(exist_ok=True)
        (tmp_path / "usps" / ("usps.bz2" if part == "train" else "usps.t.bz2")).write_bytes(bz2.compress(text.encode()))
    return tmp_path


def test_digits_of_three_makers_meet_at_32_by_32(digits: Path) -> None:
    data = Digits3(root=digits).load()
    assert data.x.shape == (90, 32, 32, 3)
    assert (data.train, data.domain_names) == (60, ("mnist", "mnist-m", "usps"))
    assert data.domains.tolist() == [0] * 20 + [1] * 20 + [2] * 20 + [0] * 10 + [1] * 10 + [2] * 10
    assert data.y.tolist() == [*range(10)] * 9
    assert data.x[0, :, 5, 0].tolist() == [0, 0, *[200] * 28, 0, 0]
    assert set(data.x[25].ravel()) == {90}
    assert data.x[45, [3, 16, 28], 16, 1].tolist() == [0, 128, 255]  # from above, these are -1, 0 and 1


def test_every_domain_is_tested_on_its_own_official_rows(digits: Path, wish: Any) -> None:
    source = Digits3(root=digits)
    fed = federation(source, wish(Domains(), 6), 0)
    tests = [client.test.rows.numpy() for client in fed.clients]
    assert all(len(client.train) == 10 for client in fed.clients)  # nothing is cut from what is trained
    assert sorted(np.concatenate(tests)) == list(range(60, 90))
    assert [set(fed.dataset.domains[rows]) for rows in tests] == [{0}, {0}, {1}, {1}, {2}, {2}]
    assert len(fed.global_test) == 30
    again = federation(source, wish(Domains(), 6), 0)
    assert fed.split.digest() == again.split.digest()
    assert len(federation(source, wish(Iid(), 4), 0).clients[0].train) == 12  # any other split cuts tests as ever


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("usps/usps.t.bz2", None, r"usps.t.bz2 is missing; expected there: usps.bz2 and usps.t.bz2"),
        ("usps/usps.bz2", b"nothing packed", r"usps.bz2 is damaged"),
        ("mnist_m/mnist_m_train_labels.txt", None, r"mnist_m_train_labels.txt is missing; expected there"),
        ("mnist_m/mnist_m_test_labels.txt", b"00000000.png seven\n", r"is damaged; expected there: lines"),
    ],
)
def test_digits_that_are_not_there_are_one_sentence(digits: Path, file: str, content: bytes | None, says: str) -> None:
    (digits / file).unlink()
    if content is not None:
        (digits / file).write_bytes(content)
    with pytest.raises(DataError, match=says):
        Digits3(root=digits).load()


def test_the_sources_are_listed() -> None:
    assert {"pacs", "office-home", "digits3"} <= set(sources.names())


@pytest.mark.slow  # unpacking them takes seconds
def test_real_pictures_of_pacs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two real pictures of each class and domain, written and read again bit for bit."""
    if not (SHARED / "pacs64.npz").is_file():
        pytest.skip("skipped: no data")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    spec = importlib.util.spec_from_file_location("medcodec", SHARED / "medcodec.py")
    codec = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(codec)
    with np.load(SHARED / "pacs64.npz", allow_pickle=False) as real:
        y, domain, names, kinds = real["y"], real["domain"], real["domain_names"], real["class_names"]
        cells = [np.flatnonzero((y == c) & (domain == d))[:2] for d in range(4) for c in range(7)]
        rows = np.concatenate(cells)
        images = codec.decode(real["x__med"][rows])
    for row, image in zip(rows, images, strict=True):
        file = tmp_path / "PACS" / str(names[domain[row]]) / str(kinds[y[row]]) / f"{row:05d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(file)
    data = Pacs(root=tmp_path).load()
    assert data.class_names == tuple(map(str, kinds))
    assert data.y.tolist() == y[rows].tolist()
    assert np.array_equal(data.x, images)
