"""The command line: parses, calls the API, prints. Heavy imports wait until a command needs them."""

import io
import os
import sys
import traceback
from collections.abc import Callable
from typing import Annotated

import click
import typer

from polyfed.cli import catalogue, deploy, papers, report, run, use
from polyfed.cli.common import say
from polyfed.errors import Interrupted, PolyfedError, trouble

app = typer.Typer(
    name="polyfed",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # [a,b] in a help text is a list, not markup
    suggest_commands=False,  # click already does
    context_settings={"help_option_names": ["-h", "--help"]},
)

COMMANDS: list[Callable[..., None]] = [run.run, run.compare, run.resume, run.show]
COMMANDS += [catalogue.methods, catalogue.data, catalogue.split, papers.reproduce, papers.verify]
COMMANDS += [report.report, report.figure, use.export, use.predict, use.audit, use.view]
for _command in COMMANDS:
    app.command()(_command)
app.add_typer(deploy.app, name="deploy")


def _tell_version(asked: bool) -> None:
    if asked:
        import polyfed

        sys.stdout.write(f"polyfed {polyfed.__version__}\n")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_tell_version, is_eager=True)
    ] = False,
) -> None:
    """Federated learning that ends in one good model per client."""


def main() -> None:
    """The entry point: a mistake is one sentence on stderr and an exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that knows no ± shows something else
    sys.exit(call(sys.argv[1:]))


def call(arguments: list[str]) -> int:
    """The exit code of a command line; for `main`, and for tests in this process."""
    try:
        told = app(arguments, prog_name="polyfed", standalone_mode=False)
    except PolyfedError as error:
        if os.environ.get("POLYFED_DEBUG") and error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        return say(str(error), error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:  # the help is its message
        sys.stdout.write(error.format_message() + "\n")
        return 0
    except click.ClickException as error:
        return say(error.format_message(), 2)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (click.exceptions.Abort, KeyboardInterrupt) as stop:
        if isinstance(stop.__cause__, EOFError):  # which click takes for the end of what somebody types
            return _fault(stop.__cause__)
        return say("interrupted", Interrupted.exit_code)
    except Exception as error:
        return _fault(error)
    return told if isinstance(told, int) else 0  # a command that ends by Exit gives its code


def _fault(error: BaseException) -> int:
    """Report an unforeseen error: as trouble of the machine, or as a fault of polyfed."""
    if os.environ.get("POLYFED_DEBUG"):
        traceback.print_exception(error)
    known = trouble(error)
    if known is not None:
        return say(str(known), known.exit_code)
    hint = "POLYFED_DEBUG=1 shows where"
    return say(f"a fault in polyfed or a method: {type(error).__name__}: {error} ({hint})", 4)
