"""The command line: parses, calls the API, prints. Heavy imports wait until a command needs them."""

import io
import json
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import click
import typer

from polyfed import deploy_cli, report_cli, use_cli
from polyfed.errors import Interrupted, PolyfedError, RunFailed, UsageError

app = typer.Typer(
    name="polyfed",
    help="Federated learning that ends in one good model per client.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # [a,b] in a help text is a list, not markup
    suggest_commands=False,  # click already does
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(deploy_cli.app, name="deploy")
app.command()(report_cli.report)
app.command()(report_cli.figure)
app.command()(use_cli.export)
app.command()(use_cli.predict)
app.command()(use_cli.view)

Words = Annotated[list[str] | None, typer.Argument(metavar="[CONFIG.yaml] [key=value ...]", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value on stdout and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]
Out = Annotated[Path | None, typer.Option("--out", help="The run directory itself; it must not exist or be empty.")]
Baseline = Annotated[str | None, typer.Option("--baseline", help="The row the others are set against.")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", show_default=False)]


@app.command()
def run(words: Words = None, out: Out = None, as_json: Json = False, quiet: Quiet = False) -> None:
    """Run one experiment; with no argument, FedAvg on digits."""
    sources, keys = _read(words)
    import polyfed

    result = polyfed.run(*sources, keys, out=out, progress=not quiet)
    _print(result.summary, as_json, lambda: _result_text(result))


@app.command()
def compare(
    words: Words = None,
    out: Annotated[Path | None, typer.Option("--out", help="Its directory; the same comparison goes on there.")] = None,
    baseline: Baseline = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare methods, settings and seeds: methods=[fedavg,fedprox] seeds=5 split.alpha=[0.1,0.5] fedprox.mu=0.1."""
    sources, keys = _read(words)
    import polyfed

    made = polyfed.compare(*sources, keys, baseline=baseline, out=out, progress=not quiet)
    _show_comparison(made, None, as_json, report=True)


@app.command()
def resume(
    path: RunPath,
    words: Annotated[list[str] | None, typer.Argument(metavar="[engine.key=value ...]", show_default=False)] = None,
    workers: Annotated[int | None, typer.Option(help="Another number of workers; the bits stay the same.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Go on with a run or comparison where it stopped; a finished one prints its result."""
    import polyfed

    if workers is not None and workers < 0:
        raise UsageError("--workers must be 0 or more")
    result = polyfed.resume(path, progress=not quiet, workers=workers, engine=_only_engine(words))
    if isinstance(result, polyfed.Comparison):
        _show_comparison(result, None, as_json, report=True)
    else:
        _print(result.summary, as_json, lambda: _result_text(result))


@app.command()
def show(path: RunPath, baseline: Baseline = None, as_json: Json = False, quiet: Quiet = False) -> None:
    """What a run or comparison achieved, or how far it is."""
    import polyfed

    result = polyfed.load(path)
    if isinstance(result, polyfed.Comparison):
        _show_comparison(result, baseline, as_json)
        return
    if baseline is not None:
        raise UsageError(f"'{path}' is one run; a baseline is chosen in a comparison")
    if result.finished:
        _print(result.summary, as_json, lambda: _result_text(result))
        return
    value = {"run": str(path), "finished": False, "round": result.round, "rounds": result.config["rounds"]}
    text = f"{path}: {value['round']} of {value['rounds']} rounds done; go on with: polyfed resume {path}"
    _print(value, as_json, lambda: text)


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(show_default=False)] = None, as_json: Json = False, quiet: Quiet = False
) -> None:
    """What there is, or one method: its paper, its parameters, what crosses the wire."""
    from polyfed.report.catalogue import method_entries, method_text, methods_text

    entries = method_entries(name)
    _print(
        entries if name is None else entries[0],
        as_json,
        lambda: method_text(entries[0]) if name else methods_text(entries),
    )


@app.command()
def data(
    words: Annotated[list[str] | None, typer.Argument(metavar="[get] [NAME]", show_default=False)] = None,
    root: Annotated[Path | None, typer.Option(help="Where to put it.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """What data sets there are, one of them, or `data get NAME` to fetch one."""
    from polyfed.report.catalogue import data_entries, data_text

    match words or []:
        case []:
            entries = data_entries(None)
        case ["get", name]:
            from polyfed.data.sources.fetch import get

            where = get(name, root, progress=not quiet)
            _print({"name": name, "root": str(where)}, as_json, lambda: f"{name} is at {where}")
            return
        case [name] if name != "get":
            entries = data_entries(name)
        case _:
            raise UsageError("say `polyfed data`, `polyfed data NAME` or `polyfed data get NAME`")
    _print(entries if not words else entries[0], as_json, lambda: data_text(entries))


@app.command()
def reproduce(
    paper: Annotated[str, typer.Argument(metavar="PAPER", show_default=False)],
    out: Annotated[Path | None, typer.Option("--out", help="Where its runs are; finished ones are kept.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a paper's tables at CPU scale, going on where an earlier call stopped, and say which claims hold."""
    from polyfed.papers.reproduce import as_json_value, as_markdown
    from polyfed.papers.reproduce import reproduce as run_recipe
    from polyfed.report.progress import watching

    folder = out or Path(os.environ.get("POLYFED_OUT") or "runs") / f"reproduce-{paper}"
    with watching(not quiet) as watch:
        results = run_recipe(paper, folder, watch)
    (folder / "results.md").write_text(as_markdown(paper, results), encoding="utf-8")
    _print(as_json_value(results), as_json, lambda: as_markdown(paper, results))
    failed = {f"{name}/{cell}": error for name, one in results.items() for cell, error in one.failures.items()}
    _list_failures(failed, f"polyfed reproduce {paper} --out {folder}")


@app.command()
def split(
    words: Words = None,
    figure: Annotated[Path | None, typer.Option("--figure", help="x.pdf, x.svg or x.png; data to x.csv.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Print and draw who holds what, before anything is trained."""
    sources, keys = _read(words)
    import polyfed
    from polyfed.report.tables import split_text

    described = polyfed.federation(*sources, keys).describe()
    if figure is not None:
        from polyfed.report.kinds.holdings import split_chart
        from polyfed.report.print import save

        save(split_chart(described), figure)
    _print(described, as_json, lambda: split_text(described))


def _read(words: list[str] | None) -> tuple[list[str], dict[str, Any]]:
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


def _only_engine(words: list[str] | None) -> dict[str, Any] | None:
    """What of a run may be said anew when it goes on: who does the work."""
    from polyfed.config import read_assignments

    tree = read_assignments(words or [])
    other = [key for key in tree if key != "engine"]
    if other:
        raise UsageError(f"'{other[0]}' cannot change when a run goes on; only engine and its keys can")
    return tree.get("engine")


def _show_comparison(made: Any, baseline: str | None, as_json: bool, report: bool = False) -> None:
    """Its table, whatever is finished; then its report, if it is to have one, and a failure, if there was one."""
    from rich.text import Text

    from polyfed.report.tables import CAPTION

    value = {
        "comparison": str(made.path),
        "runs": made.summaries,
        "table": made.table("csv", baseline),
        "missing": made.missing,
        "failed": {name: str(error) for name, error in made.failures.items()},
    }
    page = made.path / "report.html"
    value |= {"report": str(page)} if report else {}
    where = f"runs and tables: {made.path}" + (f"\nreport: {page}" if report else "")
    go_on = "" if made.finished else f"\ngo on with: polyfed resume {made.path}"
    end = f"\n{CAPTION}\n\n{where}{go_on}"
    table = made.as_table(baseline)
    _print(value, as_json, lambda: Text.assemble("\n", table.styled() if sys.stdout.isatty() else table.text(), end))
    if report:
        from polyfed.report.page import write_report

        write_report([made.path], page)
    _list_failures(made.failures, f"polyfed resume {made.path}")


def _list_failures(failures: Mapping[str, Exception], again: str) -> None:
    """Every cell that failed, with its sentence; then the exit code of a failed run."""
    if failures:
        for name, error in failures.items():
            _say(f"{name} failed: {error}", 0)
        raise RunFailed(f"{len(failures)} cells failed; try them again with: {again}")


def _result_text(result: Any) -> str:
    from polyfed.report.tables import CAPTION

    return f"\n{result.table()}\n{CAPTION}\n\nrun: {result.path}"


def _print(value: Any, as_json: bool, text: Any) -> None:
    said = json.dumps(value, indent=1) if as_json else text()
    try:
        _write(said)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads (head, less) has seen enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def _write(said: Any) -> None:
    """Text in its styles where a terminal shows them, plain elsewhere."""
    if isinstance(said, str):
        sys.stdout.write(said + "\n")
    elif sys.stdout.isatty():
        from rich.console import Console

        Console().print(said, soft_wrap=True)
    else:
        sys.stdout.write(said.plain + "\n")


def main() -> None:
    """The entry point: a mistake is one sentence on stderr and an exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that knows no ± shows something else
    sys.exit(call(sys.argv[1:]))


def call(arguments: list[str]) -> int:
    """The exit code of a command line; for `main`, and for tests in this process."""
    try:
        app(arguments, prog_name="polyfed", standalone_mode=False)
    except PolyfedError as error:
        return _say(str(error), error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:  # the help is its message
        sys.stdout.write(error.format_message() + "\n")
        return 0
    except click.ClickException as error:
        return _say(error.format_message(), 2)
    except (click.exceptions.Abort, KeyboardInterrupt):
        return _say("interrupted", Interrupted.exit_code)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except Exception as error:
        if os.environ.get("POLYFED_DEBUG"):
            traceback.print_exc()
        hint = "POLYFED_DEBUG=1 shows where"
        return _say(f"a fault in polyfed or a method: {type(error).__name__}: {error} ({hint})", 4)
    return 0


def _say(sentence: str, code: int) -> int:
    sys.stderr.write(f"polyfed: {' '.join(sentence.split())}\n")
    return code


if __name__ == "__main__":
    main()
