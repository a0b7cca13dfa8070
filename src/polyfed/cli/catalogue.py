"""`polyfed methods`, `data` and `split`: what there is, before anything is trained."""

from pathlib import Path
from typing import Annotated

import typer

from polyfed.cli.common import Json, Quiet, Words, print_value, read_words
from polyfed.errors import UsageError


def methods(
    name: Annotated[str | None, typer.Argument(show_default=False)] = None,
    rows: Annotated[bool, typer.Option("--rows", help="Rows of the papers that are settings of a method.")] = False,
    page: Annotated[bool, typer.Option("--markdown", help="All of it as a page.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """What there is, or one method: its paper, its parameters, what crosses the wire, what a round costs."""
    from polyfed.comparison.rows import named_rows
    from polyfed.report.catalogue import markdown, method_entries, method_text, methods_text, row_entries, rows_text

    if name is not None and (rows or page):
        raise UsageError("a method's name goes with neither --rows nor --markdown, which are about all")
    made = row_entries(named_rows().values())
    if rows:
        print_value(made, as_json, lambda: rows_text(made))
        return
    entries = method_entries(name)
    if page:
        typer.echo(markdown(entries, made), nl=False)
        return
    print_value(
        entries if name is None else entries[0],
        as_json,
        lambda: method_text(entries[0]) if name else methods_text(entries),
    )


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
            print_value({"name": name, "root": str(where)}, as_json, lambda: f"{name} is at {where}")
            return
        case [name] if name != "get":
            entries = data_entries(name)
        case _:
            raise UsageError("say `polyfed data`, `polyfed data NAME` or `polyfed data get NAME`")
    print_value(entries if not words else entries[0], as_json, lambda: data_text(entries))


def split(
    words: Words = None,
    figure: Annotated[Path | None, typer.Option("--figure", help="x.pdf, x.svg or x.png; data to x.csv.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Print and draw who holds what, before anything is trained."""
    sources, keys = read_words(words)
    import polyfed
    from polyfed.report.tables import split_text

    made = polyfed.federation(*sources, keys)
    described = made.describe()
    if figure is not None:
        from polyfed.data.colours import colours
        from polyfed.report.kinds.holdings import split_chart
        from polyfed.report.print import save

        named = {"class_names": made.class_names, **({"colours": colours(made.class_names)} if made.masks else {})}
        save(split_chart({**described, **named}), figure)
    print_value(described, as_json, lambda: split_text(described))
