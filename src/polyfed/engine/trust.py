"""Whose code a run may execute: only what this user ran here, unless told to trust it.

The config of a run may name code outside polyfed (`method: mine.py:Mine`), and a run directory may come from a
stranger. So a run that uses such code keeps beside its config a sealed note, code.json: where the run lies, the hash of
its config, and every file of that code with its hash. The seal is an HMAC under a secret that only this user can read,
so nobody else can make one. Code runs again, unasked, only if all of it is still so: then it is code that this user ran
before, for this very config. Whatever else is in the directory is data. A run that was copied, moved, or made by
somebody else is not trusted, and neither is code that was changed: then it takes `--trust`. A Ray cluster that a run
joins and a folder that its tracker writes into are noted, and asked about, in the same way.
"""

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from polyfed import outside
from polyfed.errors import DataError
from polyfed.files import Place, write_file
from polyfed.message import digest_of
from polyfed.registry import Spec

NOTE = "code.json"
USED = "used"
LENGTH = 32  # bytes of the secret
PURPOSE = b"polyfed: code of a run\n"  # what is sealed under this secret is sealed for this and nothing else
CURE = "look at it, and if you trust it say --trust (in Python trust=True)"


def seal(folder: Place, config: bytes, specs: Iterable[Spec]) -> None:
    """Note the code and the places outside that a directory with this config uses; nothing, where it uses none."""
    chosen = list(specs)
    code = {spec.name: outside.files_of(spec.name) for spec in chosen if ":" in spec.name}
    code |= {_user(spec): {place: USED} for spec in chosen if (place := spec.reaches())}
    if code:
        said = {"folder": str(folder.path.resolve()), "config": digest_of(config), "code": code}
        write_file(folder / NOTE, json.dumps({**said, "seal": _sealed(said, make=True)}, indent=1).encode())


@contextlib.contextmanager
def only_ours(folder: Place, config: str, trust: bool) -> Iterator[None]:
    """Inside, code that the config of a directory names runs only if this user ran it here, or if it is trusted."""

    def permit(kind: str, name: str, files: outside.Files) -> None:
        doubt = _why_not_trusted(folder, config, name, files)
        if doubt:
            where = " and ".join(f"'{file}'" for file in files)
            what = f"'{folder}' names code outside polyfed, {kind} '{name}' in {where}, which is not executed"
            raise DataError(f"{what}: {doubt}; {CURE}")

    if trust:
        yield
        return
    with outside.asking(permit):
        yield


def only_our_places(folder: Place, config: str, specs: Iterable[Spec]) -> None:
    """Refuse to join a cluster, or to write into a folder, to which only a stranger's config leads."""
    for spec in specs:
        place = spec.reaches()
        doubt = _why_not_trusted(folder, config, _user(spec), {place: USED}) if place else ""
        if doubt:
            raise DataError(f"'{folder}' would have {_user(spec)} use '{place}', outside of it: {doubt}; {CURE}")


def _user(spec: Spec) -> str:
    return f"{spec.kind} '{spec.name}'"


def _why_not_trusted(folder: Place, config: str, name: str, files: outside.Files) -> str:
    """Why this code is not known to be what this user ran here; nothing, if it is."""
    note = _note(folder)
    if note is None:
        return "the directory was not made here by this user"
    if note["folder"] != str(folder.path.resolve()):
        return f"the directory was made at '{note['folder']}' and lies elsewhere now"
    if note["config"] != digest_of((folder / config).read_bytes()):
        return f"its {config} has changed since it was made"
    before = note["code"].get(name) or {}
    if not files or not all(files.values()) or before.keys() != files.keys():
        return f"what ran was {' and '.join(before) or 'another'}"
    changed = [file for file, digest in files.items() if before[file] != digest]
    return f"'{changed[0]}' has changed since" if changed else ""


def _note(folder: Place) -> dict[str, Any] | None:
    """The note in a directory; None, if there is none that this user sealed."""
    try:
        said = json.loads((folder / NOTE).read_text())
        given = str(said.pop("seal"))
        sealed = _sealed(said, make=False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return said if sealed and hmac.compare_digest(sealed.encode(), given.encode()) else None


def _sealed(said: dict[str, Any], make: bool) -> str:
    """The seal of a note; empty, where this user has no secret and none can be made: then nothing is trusted later."""
    try:
        secret = _secret(make)
    except OSError:
        return ""
    return hmac.new(secret, PURPOSE + json.dumps(said, sort_keys=True).encode(), hashlib.sha256).hexdigest()


def _secret(make: bool) -> bytes:
    """This user's secret, which no other can read; made when it is first needed."""
    file = state() / "secret"
    if make and not file.exists():
        _make(file)
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as handle:
        found, content = os.fstat(handle.fileno()), handle.read(LENGTH + 1)
    private = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
    if not private or len(content) != LENGTH:
        raise DataError(f"'{file}' must be a file of {LENGTH} bytes that only you can read; remove it to get a new one")
    return content


def _make(file: Path) -> None:
    """Written aside and linked, so that of two processes one is first and both have the same."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    aside = file.with_name(f".secret.{secrets.token_hex(8)}")
    handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, secrets.token_bytes(LENGTH))
        os.fsync(handle)
        with contextlib.suppress(FileExistsError):
            os.link(aside, file)
    finally:
        os.close(handle)
        aside.unlink()


def state() -> Path:
    """Where polyfed keeps what is this user's and no run's."""
    given = Path(os.environ.get("XDG_STATE_HOME") or "~")
    return (given if given.is_absolute() else Path.home() / ".local" / "state") / "polyfed"
