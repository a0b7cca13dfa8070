"""Versioned client memory: immutable blobs, in memory up to a limit, on disk beyond it, all on disk at a checkpoint."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from polyfed.errors import DataError
from polyfed.files import Place, sync, write_file
from polyfed.message import digest_of

AT_ONCE = 8  # files written at a time: each waits for the disk, which serves several as fast as one
LIMIT = 1 << 30  # bytes of memory blobs held in RAM before the oldest spill to disk


class MemoryStore:
    """Client memories by (client, version); what counts is decided by the table of committed versions."""

    def __init__(self, folder: Path | Place, limit: int = LIMIT):
        self.folder, self.limit = Place.of(folder), limit
        self.table: dict[int, int] = {}  # client -> committed version
        self.digests: dict[int, str] = {}  # of the committed versions
        self._ram: dict[tuple[int, int], bytes] = {}
        self._used = 0
        self._durable: set[tuple[int, int]] = set()  # versions whose file is whole and synced; other files are stale

    def _path(self, client: int, version: int) -> Place:
        return self.folder / f"{client}-{version}.safetensors"

    def put(self, client: int, version: int, blob: bytes) -> None:
        """Hold a new version; it does not count yet."""
        self._forget(client, version)
        self._durable.discard((client, version))
        self._ram[client, version] = blob
        self._used += len(blob)
        while self._used > self.limit and self._ram:
            oldest = next(iter(self._ram))
            self._write(*oldest, durable=False)
            self._forget(*oldest)

    def get(self, client: int, version: int | None) -> bytes | None:
        """The blob of a version; None for no memory."""
        if version is None:
            return None
        if (client, version) in self._ram:
            return self._ram[client, version]
        try:
            return self._path(client, version).read_bytes()
        except OSError as error:
            raise DataError(f"the memory of client {client}, version {version}, is missing: {error.strerror}") from None

    def write(self, client: int, version: int, blob: bytes) -> None:
        """Write a new version straight to disk, where a store of another process finds it."""
        self.folder.mkdir()
        write_file(self._path(client, version), blob, durable=False)

    def show(self, client: int, version: int) -> None:
        """Move a version from RAM to disk, where a store of another process finds it."""
        if (client, version) in self._ram:
            self._write(client, version, durable=False)
            self._forget(client, version)

    def commit(self, client: int, version: int, digest: str) -> None:
        """Make this version count; the previous one is dropped from RAM, and its file waits for `prune`."""
        before = self.table.get(client)
        if before is not None and before != version:
            self._forget(client, before)
        self.table[client], self.digests[client] = version, digest

    def drop(self, client: int, version: int) -> None:
        """Delete a version that will never count."""
        self._forget(client, version)
        self._path(client, version).unlink()

    def persist(self) -> None:
        """Make sure that every committed version is on disk."""
        missing = [held for held in self.table.items() if held not in self._durable]
        if not missing:
            return
        self.folder.mkdir()
        with ThreadPoolExecutor(min(AT_ONCE, len(missing))) as threads:
            list(threads.map(self._persist, missing))
        sync(self.folder)
        self._durable.update(missing)

    def _persist(self, held: tuple[int, int]) -> None:
        if held in self._ram:
            write_file(self._path(*held), self._ram[held], durable=True)
        else:
            sync(self._path(*held))

    def prune(self, *tables: Mapping[int, int]) -> None:
        """Delete the files no kept checkpoint refers to."""
        kept = {self._path(c, v).name for table in (*tables, self.table) for c, v in table.items()}
        for name in self.folder.names():
            if name not in kept:
                (self.folder / name).unlink()

    def restore(self, table: Mapping[int, int], digests: Mapping[int, str]) -> None:
        """Go back to these versions; each file must be what it was."""
        for client, version in table.items():
            blob = self.get(client, version)
            if blob is None or digest_of(blob) != digests[client]:
                raise DataError(f"the memory of client {client}, version {version}, is corrupt")
        self.table, self.digests = dict(table), dict(digests)
        self._durable = set(table.items())

    def _write(self, client: int, version: int, durable: bool) -> None:
        self.folder.mkdir()
        write_file(self._path(client, version), self._ram[client, version], durable)

    def _forget(self, client: int, version: int) -> None:
        blob = self._ram.pop((client, version), None)
        self._used -= len(blob) if blob else 0
