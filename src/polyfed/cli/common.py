"""What the commands have in common: options, reading words, printing results."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from polyfed.errors import UsageError

Words = Annotated[list[str] | None, typer.Argument(metavar="[CONFIG.yaml] [key=value ...]", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value on stdout and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Say nothing beside the result.")]
Baseline = Annotated[str | None, typer.Option("--baseline", help="The row the others are set against.")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", show_default=False)]
Trust = Annotated[bool, typer.Option("--trust", help="Execute the code of others that it names.")]


def read_words(words: list[str] | None) -> tuple[list[str], dict[str, Any]]:
    """Config files first, then key=value words."""
    from polyfed.config import read_assignments

    given = words or []
    files = [w for w in given if "=" not in w]
    wrong = [w for w in files if not w.endswith((".yaml", ".yml")) and not Path(w).is_file()]
    if wrong:
        raise UsageError(f"'{wrong[0]}' is neither key=value nor a config file")
    if len(files) > 1:
        raise UsageError(f"one config file at most, not {len(files)}: {', '.join(files)}")
    return files, read_assignments([w for w in given if "=" in w])


def only(words: list[str] | None, *free: str) -> dict[str, Any]:
    """The tree of key=value words; any key that is not in `free` is refused, because it is fixed already."""
    from polyfed.config import read_assignments

    tree = read_assignments(words or [])
    other = [key for key in tree if key not in free]
    if other:
        raise UsageError(f"'{other[0]}' cannot change here; only {', '.join(free)} can")
    return tree


def print_value(value: Any, as_json: bool, text: Any) -> None:
    """A value as JSON, or what `text` makes of it, on stdout."""
    said = json.dumps(value, indent=1) if as_json else text()
    try:
        _write(said)
        sys.stdout.flush()
    except OSError as error:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        if not isinstance(error, BrokenPipeError):  # the reader (head, less) has closed the pipe
            raise


def _write(said: Any) -> None:
    """Text in its styles where a terminal shows them, plain elsewhere."""
    if isinstance(said, str):
        sys.stdout.write(said + "\n")
    elif sys.stdout.isatty():
        from rich.console import Console

        Console().print(said, soft_wrap=True)
    else:
        sys.stdout.write(said.plain + "\n")


def say(sentence: str, code: int) -> int:
    """One sentence on stderr; gives the exit code back."""
    sys.stderr.write(f"polyfed: {' '.join(sentence.split())}\n")
    return code
