"""What goes wrong, by who must act: each error carries the exit code of the command line."""

import errno
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

NO_MEMORY = re.compile(r"can't allocate memory|not enough memory|out of memory|Cannot allocate memory|bad_alloc", re.I)
SHORT = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
NO_ROOM = re.compile(r"No space left on device|disk is full|Disk quota exceeded", re.I)  # however a library puts it


class PolyfedError(Exception):
    """A mistake or mishap that one clear sentence explains; never shown with a traceback."""

    exit_code = 4


class UsageError(PolyfedError):
    """The request is wrong: a key, a value, an infeasible split, a config file that cannot be read."""

    exit_code = 2


class DataError(PolyfedError):
    """Data or a run is missing, corrupt, foreign or in use."""

    exit_code = 3


class InUse(DataError):
    """Another process works on it; later it can be looked at again."""


class MachineTrouble(DataError):
    """This machine refuses: the disk is full, memory is short, a directory is gone, too many files are open."""


class RunFailed(PolyfedError):
    """The run started and could not go on."""

    exit_code = 4


class Interrupted(PolyfedError):
    """The run was stopped from outside and can be resumed."""

    exit_code = 130


def trouble(error: BaseException) -> MachineTrouble | None:
    """An error that is the machine's and nobody's fault, as one sentence; None for any other.

    Libraries wrap what the machine told them, so an error is also judged by its cause and by its words.
    """
    if isinstance(error, PolyfedError):
        return error if isinstance(error, MachineTrouble) else None
    if isinstance(error, MemoryError) or (not isinstance(error, OSError) and NO_MEMORY.search(str(error))):
        asked = re.search(r"allocate ([\d.]+ ?\w+)", str(error))
        return MachineTrouble(f"this machine has too little memory{f' to allocate {asked[1]}' if asked else ''}")
    if not isinstance(error, OSError):
        full = NO_ROOM.search(str(error))
        if full:
            return MachineTrouble(f"this machine refuses: {full[0]}")
        cause = error.__cause__ or error.__context__
        return trouble(cause) if cause is not None and _is_shortage(cause) else None
    why = error.strerror or str(error) or type(error).__name__
    files = [f"'{os.fsdecode(name)}'" for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
    return MachineTrouble(f"this machine refuses: {why}{f' ({files[0]})' if files else ''}")


def _is_shortage(error: BaseException) -> bool:
    """Whether memory, disk or open files ran out, here or beneath it."""
    cause = error.__cause__ or error.__context__
    short = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in SHORT)
    return short or (cause is not None and _is_shortage(cause))


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Inside, files are made use of that anybody may have written: what goes wrong there is said of them."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, EOFError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"
        raise DataError(f"{what} cannot be shown: it is damaged, or this is a fault in polyfed ({why})") from error


def did_you_mean(word: str, valid: Iterable[str]) -> str:
    """A hint for an unknown word: the nearest valid one, or all of them if none is near."""
    names = sorted(valid)
    near = get_close_matches(word, names, n=1, cutoff=0.5)
    if near:
        return f"did you mean '{near[0]}'?"
    return f"valid: {', '.join(names)}" if names else "there is none here"
