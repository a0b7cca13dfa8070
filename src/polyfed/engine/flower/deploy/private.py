"""Files that only their owner may read: keys, tokens, secrets."""

import os
import secrets
from pathlib import Path

from polyfed.errors import DataError


def write_private(path: Path, content: bytes) -> None:
    """A new file for its owner alone, from the first byte on."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)


def make_secret(path: Path) -> None:
    """A new secret that nobody can guess."""
    write_private(path, secrets.token_urlsafe(32).encode())


def read_private(path: Path) -> bytes:
    """What the file holds; one that is missing, empty or open to others is refused in a sentence."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read()
    except OSError as error:
        raise DataError(f"the private file {path} cannot be read: {error.strerror}") from None
    if mode & 0o077:
        raise DataError(f"others on this machine may read the private file {path}: chmod 600 it")
    if not content:
        raise DataError(f"the private file {path} is empty")
    return content


__all__ = ["make_secret", "read_private", "write_private"]
