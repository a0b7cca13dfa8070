"""What goes wrong, by who must act: each error carries the exit code of the command line."""

from collections.abc import Iterable
from difflib import get_close_matches


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


class RunFailed(PolyfedError):
    """The run started and could not go on."""

    exit_code = 4


class Interrupted(PolyfedError):
    """The run was stopped from outside and can be resumed."""

    exit_code = 130


def did_you_mean(word: str, valid: Iterable[str]) -> str:
    """A hint for an unknown word: the nearest valid one, or all of them if none is near."""
    names = sorted(valid)
    near = get_close_matches(word, names, n=1, cutoff=0.5)
    if near:
        return f"did you mean '{near[0]}'?"
    return f"valid: {', '.join(names)}" if names else "there is none here"
