"""Files of a run: reached from the run's directory through no link, so that nothing outside of it is read or changed.

Whoever made a run directory chose what lies in it. A link named `rounds.csv` would have a resumed run append to what
it points at; a pipe of that name would have it wait for ever. So every file of a run is opened by a `Place`: step by
step from the directory, with O_NOFOLLOW, and only if it is a plain file. The way to the directory itself is the user's
own, and may have links.
"""

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from polyfed.errors import DataError

READ = os.O_RDONLY
APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT
CAREFULLY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # without O_NONBLOCK, opening a pipe waits for its other end
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Place:
    """A file or folder below a directory, named by the steps that lead to it; there need not be anything yet."""

    def __init__(self, root: Path, *steps: str):
        self.root, self.steps = root, steps

    @staticmethod
    def of(folder: "Path | Place") -> "Place":
        """A directory as the place from which everything below it is reached."""
        return folder if isinstance(folder, Place) else Place(folder)

    def __truediv__(self, step: str) -> "Place":
        if step in ("", ".", "..") or "/" in step or "\0" in step:
            raise DataError(f"{step!r} is not the name of a file in '{self}'")
        return Place(self.root, *self.steps, step)

    @property
    def path(self) -> Path:
        """Where it is, for messages and for libraries that open files themselves."""
        return self.root.joinpath(*self.steps)

    @property
    def name(self) -> str:
        """Its last step."""
        return self.path.name

    def __str__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"<place {self}>"

    # ---- what is there

    def exists(self) -> bool:
        """Whether there is anything; a link is refused."""
        return self._stat() is not None

    def is_file(self) -> bool:
        """Whether there is a plain file; a link is refused."""
        found = self._stat()
        return found is not None and stat.S_ISREG(found.st_mode)

    def is_dir(self) -> bool:
        """Whether there is a folder; a link is refused."""
        found = self._stat()
        return found is not None and stat.S_ISDIR(found.st_mode)

    def size(self) -> int:
        """Bytes of a file; 0 where there is none."""
        found = self._stat()
        return 0 if found is None else found.st_size

    def names(self) -> list[str]:
        """What lies in a folder, sorted; nothing where there is none."""
        try:
            with self._folder() as handle:
                return sorted(os.listdir(handle))
        except FileNotFoundError:
            return []

    def refuse_links(self, depth: int | None = None) -> None:
        """For a folder that a library writes into by itself: no link is in it, however deep or down to a depth."""
        if self.is_dir() and depth != 0:
            for name in self.names():
                (self / name).refuse_links(None if depth is None else depth - 1)

    # ---- reading

    def open(self) -> IO[bytes]:
        """A file, to be read."""
        return os.fdopen(self._open(READ), "rb")

    def read_bytes(self) -> bytes:
        """All of a file."""
        with self.open() as file:
            return file.read()

    def read_text(self) -> str:
        """All of a file of UTF-8 text."""
        return self.read_bytes().decode()

    # ---- writing

    def append(self, content: bytes) -> None:
        """Add to the end of a file, which is made if there is none."""
        with self._named(), os.fdopen(self._open(APPEND), "ab") as file:
            file.write(content)

    def lock(self) -> IO[bytes]:
        """An empty file, made if there is none, to hold a lock on."""
        return os.fdopen(self._open(APPEND), "ab")

    def cut(self, length: int) -> None:
        """Forget what lies beyond a length."""
        handle = self._open(os.O_WRONLY)
        try:
            os.ftruncate(handle, length)
        finally:
            os.close(handle)

    def mkdir(self) -> None:
        """Make this folder, and those above it, where they are not there yet."""
        if not self.steps:
            self.root.mkdir(parents=True, exist_ok=True)
            return
        Place(self.root, *self.steps[:-1]).mkdir()
        with self._above() as above, contextlib.suppress(FileExistsError):
            os.mkdir(self.steps[-1], dir_fd=above)
        with self._folder():  # not a link, and not a file
            pass

    def rename(self, name: str) -> None:
        """Give it another name in its folder."""
        with self._above() as above:
            os.rename(self.steps[-1], name, src_dir_fd=above, dst_dir_fd=above)

    def unlink(self) -> None:
        """Remove a file, if there is one."""
        with contextlib.suppress(FileNotFoundError), self._above() as above:
            os.unlink(self.steps[-1], dir_fd=above)

    def remove(self) -> None:
        """Remove a folder with everything in it; what cannot be removed stays."""
        with contextlib.suppress(FileNotFoundError), self._above() as above:
            shutil.rmtree(self.steps[-1], ignore_errors=True, dir_fd=above)

    # ---- how it is reached

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """What the machine refuses inside is said with the name of this file: a full disk does not tell."""
        try:
            yield
        except OSError as error:
            error.filename = error.filename or str(self)
            raise

    @contextlib.contextmanager
    def _above(self) -> Iterator[int]:
        """The folder it lies in, open."""
        handle = os.open(self.root, FOLDER)
        try:
            for number in range(1, len(self.steps)):
                below = Place(self.root, *self.steps[:number])._at(handle, FOLDER)
                os.close(handle)
                handle = below
            yield handle
        finally:
            os.close(handle)

    @contextlib.contextmanager
    def _folder(self) -> Iterator[int]:
        """This folder itself, open."""
        if not self.steps:
            handle = os.open(self.root, FOLDER)
        else:
            with self._above() as above:
                handle = self._at(above, FOLDER)
        try:
            yield handle
        finally:
            os.close(handle)

    def _at(self, above: int, flags: int) -> int:
        """Open the last step in an open folder."""
        try:
            return os.open(self.steps[-1], flags | CAREFULLY, 0o666, dir_fd=above)
        except OSError as error:
            error.filename = str(self)
            with contextlib.suppress(FileNotFoundError):
                found = os.stat(self.steps[-1], dir_fd=above, follow_symlinks=False)
                self._refuse_link(found)
                need_plain(found, str(self))
            raise

    def _open(self, flags: int) -> int:
        """A plain file, open; written to only if it has no other name, by which something outside would change."""
        with self._above() as above:
            handle = plain(self._at(above, flags), str(self))
        if flags != READ and os.fstat(handle).st_nlink > 1:
            os.close(handle)
            raise DataError(f"'{self}' has another name elsewhere (a hard link): replace it by a copy of its own")
        return handle

    def _stat(self) -> os.stat_result | None:
        try:
            if not self.steps:
                return os.stat(self.root)
            with self._above() as above:
                found = os.stat(self.steps[-1], dir_fd=above, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        self._refuse_link(found)
        return found

    def _refuse_link(self, found: os.stat_result) -> None:
        if stat.S_ISLNK(found.st_mode):
            raise DataError(f"'{self}' is a link, which may lead anywhere: put what it stands for in its place")


def need_plain(found: os.stat_result, where: str) -> None:
    """Refuse what is no plain file: a pipe or a device may have no end."""
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), where)
    if not stat.S_ISREG(found.st_mode):
        raise DataError(f"'{where}' is not a plain file")


def plain(handle: int, where: str) -> int:
    """An open file again, if it is a plain one."""
    try:
        need_plain(os.fstat(handle), where)
    except BaseException:
        os.close(handle)
        raise
    return handle


def plain_file(path: Path) -> Path:
    """A file that a library opens by itself; not a pipe, for which it would wait."""
    need_plain(path.stat(), str(path))
    return path


def read_plain(path: Path | Place) -> bytes:
    """All of a file: one of a run, or one that a user names, where links are the user's own."""
    if isinstance(path, Place):
        return path.read_bytes()
    with os.fdopen(plain(os.open(path, READ | os.O_NONBLOCK | os.O_CLOEXEC), str(path)), "rb") as file:
        return file.read()


def write_file(where: Path | Place, content: bytes, durable: bool = True) -> None:
    """Write aside, sync, rename: a reader sees the old file or the whole new one."""
    place = where if isinstance(where, Place) else Place(where.parent) / where.name
    aside = f".{place.name}.{os.getpid()}.tmp"
    with place._named(), place._above() as above:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(aside, dir_fd=above)  # of a process of this number that was killed
        try:
            handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | CAREFULLY, 0o666, dir_fd=above)
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(aside, place.steps[-1], src_dir_fd=above, dst_dir_fd=above)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(aside, dir_fd=above)
            raise


def sync(place: Place) -> None:
    """Make a file or a folder's names durable."""
    with place._named():
        if place.is_dir():
            with place._folder() as handle:
                os.fsync(handle)
        else:
            with place.open() as file:
                os.fsync(file.fileno())
