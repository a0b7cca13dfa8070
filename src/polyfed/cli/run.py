"""`polyfed run`, `compare`, `resume` and `show`: experiments and what came of them."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from polyfed.cli.common import Baseline, Json, Quiet, RunPath, Trust, Words, only, print_value, read_words, say
from polyfed.errors import RunFailed, UsageError, reading

Columns = Annotated[
    str | None, typer.Option("--columns", help="The columns of the table, for example personal,tail,bytes.")
]
Out = Annotated[Path | None, typer.Option("--out", help="The run directory itself; it must not exist or be empty.")]


def run(words: Words = None, out: Out = None, as_json: Json = False, quiet: Quiet = False) -> None:
    """Run one experiment; with no argument, FedAvg on digits."""
    sources, keys = read_words(words)
    import polyfed

    result = polyfed.run(*sources, keys, out=out, progress=not quiet)
    print_value(result.summary, as_json, lambda: _result_text(result))


def compare(
    words: Words = None,
    out: Annotated[Path | None, typer.Option("--out", help="Its directory; the same comparison goes on there.")] = None,
    baseline: Baseline = None,
    columns: Columns = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare methods, settings and seeds: methods=fedavg,fedprox seeds=5 split.alpha=0.1,0.5 fedprox.mu=0.1.

    Every other key can be set for one method alone, too: fedprox.train.lr=0.05.
    """
    sources, keys = read_words(words)
    import polyfed

    chosen = _chosen(columns)
    made = polyfed.compare(*sources, keys, baseline=baseline, columns=chosen, out=out, progress=not quiet)
    _show_comparison(made, None, chosen, as_json, report=True)


def resume(
    path: RunPath,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[engine.key=value ...] [jobs=N] [share=false]", show_default=False)
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Another number of workers; the bits stay the same.")] = None,
    trust: Trust = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Go on with a run or comparison where it stopped; a finished one prints its result."""
    import polyfed

    if workers is not None and workers < 0:
        raise UsageError("--workers must be 0 or more")
    anew = only(words, "engine", "jobs", "share")
    result = polyfed.resume(path, progress=not quiet, workers=workers, trust=trust, **anew)
    if isinstance(result, polyfed.Comparison):
        _show_comparison(result, None, None, as_json, report=True)
    else:
        print_value(result.summary, as_json, lambda: _result_text(result))


def show(
    path: RunPath, baseline: Baseline = None, columns: Columns = None, as_json: Json = False, quiet: Quiet = False
) -> None:
    """What a run or comparison achieved, or how far it is."""
    import polyfed

    result = polyfed.load(path)
    if isinstance(result, polyfed.Comparison):
        with reading(f"'{path}'"):
            _show_comparison(result, baseline, _chosen(columns), as_json)
        return
    if baseline is not None or columns is not None:
        raise UsageError(f"'{path}' is one run; a baseline and columns are chosen in a comparison")
    for remark in result.remarks:
        say(remark, 0)
    if result.finished:
        with reading(f"'{path}'"):
            print_value(result.summary, as_json, lambda: _result_text(result))
        return
    value = {"run": str(path), "finished": False, "round": result.round, "rounds": result.config["rounds"]}
    text = f"{path}: {value['round']} of {value['rounds']} rounds done; go on with: polyfed resume {path}"
    print_value(value, as_json, lambda: text)


def _chosen(columns: str | None) -> list[str] | None:
    """The names in `personal,tail`."""
    return None if columns is None else [name.strip() for name in columns.split(",")]


def _show_comparison(
    made: Any, baseline: str | None, columns: list[str] | None, as_json: bool, report: bool = False
) -> None:
    """Its table, whatever is finished; then its report, if it is to have one, and a failure, if there was one."""
    from rich.text import Text

    from polyfed.report.tables import caption

    value = {
        "comparison": str(made.path),
        "runs": made.summaries,
        "table": made.table("csv", baseline, columns),
        "missing": made.missing,
        "failed": {name: str(error) for name, error in made.failures.items()},
    }
    page = made.path / "report.html"
    value |= {"report": str(page)} if report else {}
    where = f"runs and tables: {made.path}" + (f"\nreport: {page}" if report else "")
    go_on = "" if made.finished else f"\ngo on with: polyfed resume {made.path}"
    end = f"\n{caption(made.summaries)}\n\n{where}{go_on}"
    table = made.as_table(baseline, columns)
    print_value(
        value, as_json, lambda: Text.assemble("\n", table.styled() if sys.stdout.isatty() else table.text(), end)
    )
    if report:
        from polyfed.report.page import write_report

        write_report([made.path], page)
    _list_failures(made.failures, f"polyfed resume {made.path}")


def _list_failures(failures: Mapping[str, Exception], again: str) -> None:
    """Every cell that failed, with its sentence; then the exit code of a failed run."""
    if failures:
        for name, error in failures.items():
            say(f"{name} failed: {error}", 0)
        raise RunFailed(f"{len(failures)} cells failed; try them again with: {again}")


def _result_text(result: Any) -> str:
    from polyfed.report.tables import caption

    return f"\n{result.table()}\n{caption([result.summary])}\n\nrun: {result.path}"
