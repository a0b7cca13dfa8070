"""Files of a run are reached through no link, and only if they are plain files."""

import contextlib
import os
from pathlib import Path

import pytest

from polyfed.errors import DataError
from polyfed.files import Place, read_plain, sync, write_file

LINK, PLAIN = "is a link, which may lead anywhere", "is not a plain file"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder beside the run that nothing may touch."""
    (tmp_path / "outside" / "deep").mkdir(parents=True)
    for name in ("file", "deep/file"):
        (tmp_path / "outside" / name).write_text("precious")
    return tmp_path / "outside"


@pytest.fixture
def run(tmp_path: Path) -> Place:
    (tmp_path / "run").mkdir()
    return Place(tmp_path / "run")


def untouched(outside: Path) -> bool:
    found = {str(p.relative_to(outside)): p.read_text() for p in outside.rglob("*") if p.is_file()}
    return found == {"file": "precious", "deep/file": "precious"}


ACTS = {
    "exists": lambda place: place.exists(),
    "size": lambda place: place.size(),
    "read": lambda place: place.read_bytes(),
    "append": lambda place: place.append(b"more"),
    "cut": lambda place: place.cut(1),
    "lock": lambda place: place.lock(),
    "sync": sync,
}
IN_THE_MIDDLE = ACTS | {
    "write": lambda place: write_file(place, b"new"),
    "unlink": lambda place: place.unlink(),
    "remove": lambda place: place.remove(),
    "mkdir": lambda place: place.mkdir(),
    "rename": lambda place: place.rename("other"),
    "names": lambda place: place.names(),
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("target", ["file", "not there"])
def test_a_link_is_refused_and_nothing_is_made(act: str, target: str, run: Place, outside: Path) -> None:
    (run.path / "rounds.csv").symlink_to(outside / target)
    with pytest.raises(DataError, match=LINK):
        ACTS[act](run / "rounds.csv")
    assert untouched(outside)


@pytest.mark.parametrize("act", IN_THE_MIDDLE)
@pytest.mark.parametrize("steps", [("checkpoints", "file"), ("checkpoints", "deep", "file"), ("real", "deep", "file")])
def test_a_link_in_the_middle_is_refused(act: str, steps: tuple[str, ...], run: Place, outside: Path) -> None:
    (run.path / "checkpoints").symlink_to(outside)
    (run.path / "real").mkdir()
    (run.path / "real" / "deep").symlink_to(outside / "deep")
    with pytest.raises(DataError, match=LINK):
        IN_THE_MIDDLE[act](Place(run.root, *steps))
    assert untouched(outside)


def test_a_folder_that_is_a_link_is_neither_listed_nor_made(run: Place, outside: Path) -> None:
    (run.path / "memory").symlink_to(outside)
    for act in (lambda p: p.names(), lambda p: p.mkdir(), lambda p: p.is_dir(), sync):
        with pytest.raises(DataError, match=LINK):
            act(run / "memory")
    (run / "memory").remove()
    assert untouched(outside)


def test_what_is_written_takes_the_place_of_a_link(run: Place, outside: Path) -> None:
    (run.path / "summary.json").symlink_to(outside / "file")
    (run.path / f".summary.json.{os.getpid()}.tmp").symlink_to(outside / "file")  # where it is written aside
    write_file(run / "summary.json", b"{}")
    assert untouched(outside)
    assert (run / "summary.json").read_bytes() == b"{}"
    assert run.names() == ["summary.json"]


def test_a_hard_link_is_not_written_through(run: Place, outside: Path) -> None:
    os.link(outside / "file", run.path / "log.txt")
    for act in (lambda p: p.append(b"more"), lambda p: p.cut(0)):
        with pytest.raises(DataError, match="hard link"):
            act(run / "log.txt")
    assert untouched(outside)


@pytest.mark.parametrize("act", ["read", "append", "cut", "lock", "sync"])
def test_a_pipe_is_refused_without_waiting(act: str, run: Place) -> None:
    os.mkfifo(run.path / "log.txt")
    with pytest.raises(DataError, match=PLAIN):
        ACTS[act](run / "log.txt")


def test_a_pipe_that_a_user_names_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.yaml")
    with pytest.raises(DataError, match=PLAIN):
        read_plain(tmp_path / "config.yaml")
    with pytest.raises(DataError, match=PLAIN):
        read_plain(Path("/dev/zero"))
    with pytest.raises(IsADirectoryError):
        read_plain(tmp_path)


@pytest.mark.parametrize("step", ["", ".", "..", "a/b", "/etc", "a\0b"])
def test_a_step_is_one_name(step: str, run: Place) -> None:
    with pytest.raises(DataError, match="is not the name of a file"):
        run / step


def test_the_way_to_the_directory_may_have_links(run: Place, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(run.path)
    place = Place(tmp_path / "latest")
    (place / "checkpoints" / "at-000001").mkdir()
    write_file(place / "checkpoints" / "at-000001" / "head.json", b"{}")
    (place / "log.txt").append(b"one\n")
    (place / "log.txt").append(b"two\n")
    (place / "log.txt").cut(4)
    assert (run / "log.txt").read_text() == "one\n"
    assert (run / "checkpoints" / "at-000001").names() == ["head.json"]
    (place / "checkpoints" / "at-000001").rename("at-000002")
    assert (run / "checkpoints").names() == ["at-000002"]
    (place / "checkpoints" / "at-000002").remove()
    assert (run / "checkpoints").names() == []


def test_no_handle_stays_open(run: Place, outside: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    (run.path / "checkpoints").symlink_to(outside)
    os.mkfifo(run.path / "log.txt")
    for _ in range(5):
        for name, act in IN_THE_MIDDLE.items():
            for place in (run / "checkpoints" / "file", *([run / "log.txt"] if name in ACTS else [])):
                with contextlib.suppress(DataError, OSError):
                    act(place)
    assert len(os.listdir("/proc/self/fd")) == before
