"""`polyfed reproduce` and `verify`: the papers' tables and figures, and whether stored cells come out again."""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from polyfed.cli.common import Json, Quiet, print_value, say
from polyfed.errors import RunFailed, UsageError

if TYPE_CHECKING:
    from polyfed.papers.cell import PaperCell
    from polyfed.papers.found import ItemFound
    from polyfed.papers.recipe import Item
    from polyfed.papers.reproduce import Wish
    from polyfed.papers.store import Store

NICENESS = 10  # long grids leave the machine to whoever works at it
StorePath = Annotated[
    Path | None, typer.Option("--store", help="The folder of finished cells; by default ./results if it is there.")
]


def reproduce(
    names: Annotated[list[str] | None, typer.Argument(metavar="[PAPER|PAPER.ITEM ...]", show_default=False)] = None,
    scale: Annotated[str | None, typer.Option(help="cpu, which is also what is run without it, or paper.")] = None,
    seeds: Annotated[int | None, typer.Option(help="How many seeds; by default the recipe's.", min=1)] = None,
    only: Annotated[str, typer.Option("--only", help="Only panels with this text in their names; A|B: either.")] = "",
    rows: Annotated[str, typer.Option("--rows", help="Only rows with this text in their names; A|B: either.")] = "",
    jobs: Annotated[str, typer.Option(help="Cells at once: auto or a number.")] = "auto",
    minutes: Annotated[float | None, typer.Option(help="Begin no further cell after so many minutes.", min=0)] = None,
    everything: Annotated[bool, typer.Option("--all", help="Run a whole paper, however long that takes.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Where its runs are; they go on there.")] = None,
    store: StorePath = None,
    listed: Annotated[
        bool, typer.Option("--list", help="Run nothing; list what would be run, panel by panel, and how long it takes.")
    ] = False,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="List (or with --write-docs write), with times that are measured now.")
    ] = False,
    write_docs: Annotated[
        Path | None,
        typer.Option(
            "--write-docs",
            help="Run nothing; write the page of results to this file, or the tables that it has places for.",
        ),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Reproduce papers' tables and figures, with the printed numbers beside; with no argument, list them all."""
    from polyfed.papers.store import Store

    folder = out or Path(os.environ.get("POLYFED_OUT") or "runs") / "papers"
    kept = Store.open(store_path(store, folder))
    if write_docs is not None:
        _write_page(write_docs, kept, calibrate, as_json)
        return
    from polyfed.papers.reproduce import Wish

    wish = Wish(_scale(scale), seeds, only, rows, minutes, who={"jobs": _jobs(jobs)})
    if not names or listed or calibrate:
        _list(names or [], wish, scale, kept, calibrate, as_json)
    else:
        _run(names, wish, kept, folder, as_json, quiet, everything or minutes is not None)


def _scale(scale: str | None) -> str:
    from polyfed.papers.recipe import SCALES

    if scale not in (None, *SCALES):
        raise UsageError(f"--scale is {' or '.join(SCALES)} (got '{scale}')")
    return scale or "cpu"


def _write_page(file: Path, store: "Store", calibrate: bool, as_json: bool) -> None:
    """The page of results; of a page that somebody wrote, only the tables that it has places for."""
    from polyfed.files import write_file
    from polyfed.papers.page import results_page
    from polyfed.papers.places import filled, has_places

    page = file.read_text(encoding="utf-8") if file.is_file() else ""
    made = filled(page, store) if has_places(page) else results_page(store, measure=calibrate)
    write_file(file, made.encode())
    print_value({"page": str(file)}, as_json, lambda: f"results: {file}")


def store_path(given: Path | None, out: Path) -> Path:
    """The store that is named, else ./results if it is there, else one beside the runs."""
    if given is not None:
        return given
    here = Path("results")
    return here if here.is_dir() else out / "results"


def _list(
    names: Sequence[str], wish: "Wish", scale: str | None, store: "Store", calibrate: bool, as_json: bool
) -> None:
    """What there is of these names, at both scales where none is given; panel by panel where something is named."""
    from polyfed.papers import listing
    from polyfed.papers.calibrate import Calibration
    from polyfed.papers.recipe import find_items

    def asked(item: "Item", at: str) -> "list[PaperCell]":
        return replace(wish, scale=at).cells(item) if scale in (None, at) else []

    items = find_items(names)
    found = listing.entries(items, store, Calibration.here(), calibrate, asked)
    if not found:
        raise UsageError(_nothing(names, wish))
    print_value(listing.as_json(found), as_json, lambda: listing.as_text(found, panels=bool(names)))


def _nothing(names: Sequence[str], wish: "Wish") -> str:
    """What was asked for, where there is none of it."""
    given = {"--only": wish.only, "--rows": wish.rows}
    asked = [f"{what} '{text}'" for what, text in given.items() if text]
    of = ", ".join(names) or "the papers"
    if not asked:
        return f"nothing of {of} has the scale '{wish.scale}'"
    return f"nothing of {of} has the text of {' and '.join(asked)} in its names"


def _run(
    names: Sequence[str], wish: "Wish", store: "Store", folder: Path, as_json: bool, quiet: bool, whole: bool
) -> None:
    from polyfed.papers.calibrate import Calibration
    from polyfed.papers.recipe import find_items, papers
    from polyfed.papers.reproduce import reproduce as run_items
    from polyfed.papers.times import Times, parts_left
    from polyfed.report.progress import watching

    chosen = [item for item in find_items(names) if wish.scale in item.scales]
    if not chosen:
        raise UsageError(f"nothing of {', '.join(names)} has the scale '{wish.scale}'")
    if not any(wish.cells(item) for item in chosen):
        raise UsageError(_nothing(names, wish))
    if not whole and any(name in papers() for name in names):
        _refuse_unless_done(names, chosen, wish, store)
    os.nice(max(0, NICENESS - os.nice(0)))
    with watching(not quiet) as watch:
        results = run_items(chosen, wish, store, folder, watch)
    written = _write(results, store, folder)
    times = Times.of(results, Calibration.here())
    text = "\n".join(found.markdown(parts_left(found.missing, times)) for found in results)
    print_value([found.as_json() for found in results], as_json, lambda: text + "\n" + "\n".join(written))
    failed = {name: error for found in results for name, error in found.failures.items()}
    if failed:
        for name, error in failed.items():
            say(f"{name} failed: {error}", 0)
        again = f"polyfed reproduce {' '.join(names)} --scale {wish.scale} --out {folder}"
        raise RunFailed(f"{len(failed)} cells failed; try them again with: {again}")


def _refuse_unless_done(names: Sequence[str], chosen: "Sequence[Item]", wish: "Wish", store: "Store") -> None:
    """A whole paper takes hours to days: whoever means it says so."""
    from polyfed.papers.at_hand import with_data
    from polyfed.papers.calibrate import Calibration, at_once
    from polyfed.papers.found import ItemFound
    from polyfed.papers.left import spoken
    from polyfed.papers.times import Times

    every = [ItemFound.of(item, wish.scale, wish.cells(item), store) for item in chosen]
    open_ones = [found.item.id for found in every if found.missing]
    left = Times.of(every, Calibration.here()).left(with_data([cell for found in every for cell in found.missing]))
    if not left.cells:
        return
    unknown = f", and {left.cells - left.known} of unknown length" if left.known < left.cells else ""
    about = f"about {spoken(at_once(left.minutes))} of this machine{unknown}" if left.known else "of unknown length"
    raise UsageError(
        f"{' '.join(names)} would run {left.cells} cells of {', '.join(open_ones)}, {about}: name one of these, give "
        "--minutes M to begin no cell after M minutes, or --all to run them all"
    )


def _jobs(jobs: str) -> int | Literal["auto"]:
    if jobs == "auto":
        return "auto"
    if not jobs.isdecimal() or int(jobs) < 1:
        raise UsageError(f"--jobs is auto or a number of cells to run at once (got '{jobs}')")
    return int(jobs)


def _write(results: "Sequence[ItemFound]", store: "Store", folder: Path) -> list[str]:
    """Tables, pictures with their data, and a page for each paper; where they are."""
    from polyfed.errors import DataError
    from polyfed.files import write_file
    from polyfed.papers.drawings import picture
    from polyfed.papers.paper_page import html_page

    folder.mkdir(parents=True, exist_ok=True)
    said = [f"store: {store.path}"]
    for found in results:
        name = f"{found.item.id}-{found.scale}"
        write_file(folder / f"{name}.md", found.markdown().encode())
        try:
            made = picture(found, folder / name)
        except DataError as error:
            said.append(f"no picture: {error}")
            continue
        if made is not None:
            made.save(folder / f"{name}.png")
            made.close()
            said.append(f"picture: {folder / name}.png")
    for paper in dict.fromkeys(found.item.paper for found in results):
        write_file(folder / f"{paper}.html", html_page(paper, store, folder).encode())
        said.append(f"page: {folder / paper}.html")
    return said


def verify(
    path: Annotated[Path, typer.Argument(metavar="STORE", show_default=False, help="A store, a part of it, a cell.")],
    cells: Annotated[int, typer.Option("--cells", help="How many cells, drawn at random.", min=1)] = 1,
    seed: Annotated[int, typer.Option("--seed", help="Of the drawing.", min=0)] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Where they run; an empty or new folder.")] = None,
    renew: Annotated[bool, typer.Option("--renew", help="Try all stale cells by their first rounds instead.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Repeat cells of a store, drawn at random, and compare fingerprints and numbers; exit code 1 if one differs."""
    from polyfed.papers import verify as room
    from polyfed.report.progress import watching

    if out is not None and out.exists() and any(out.iterdir()):
        raise UsageError(f"'{out}' is not empty: a cell is repeated from its beginning, in a new folder")
    root, files = room.stored_files(path)
    with tempfile.TemporaryDirectory() as aside, watching(not quiet) as watch:
        if renew:
            checked = room.renew(root, files, watch)
        else:
            checked = room.verify(room.draw(files, cells, seed), out or Path(aside), watch)
    value = [{"cell": str(one.file), "outcome": one.outcome, "said": one.said} for one in checked]
    lines = [f"{one.outcome}: {one.file.resolve().relative_to(root)}: {one.said}" for one in checked]
    differing = sum(one.failed for one in checked)
    lines.append(f"{len(checked)} of {len(files)} cells drawn, {differing} different")
    print_value(value, as_json, lambda: "\n".join(lines))
    if differing:
        raise typer.Exit(1)
