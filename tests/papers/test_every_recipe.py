"""Every recipe at a tiny scale: two rounds of its real code path, its table and its picture."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_paper import EXPECTED

from polyfed.config import Tree, make_config, merge, unflatten
from polyfed.engine.work import federation_of
from polyfed.errors import PolyfedError
from polyfed.measure.watch import Silent
from polyfed.papers.at_hand import data_of, is_here
from polyfed.papers.cell import PaperCell, cells_of
from polyfed.papers.demos import demo_of
from polyfed.papers.drawings import picture
from polyfed.papers.recipe import Item, find_items
from polyfed.papers.reproduce import Wish, reproduce
from polyfed.papers.store import Store

COMMON: Tree = {"rounds": 2, "participation": 1.0, "eval.every": 1, "checkpoint.every": 2, "engine.workers": 0}
COMMON |= {"train.epochs": 1.0, "train.schedule": "constant", "train.batch": 16}
BY_WRITERS = ("femnist",)  # digits stand in, which have no writers
NO_PICTURES = ("uci-har", "wisdm", "hapt", "camvid", "cityscapes", "pacs", "office-home", "digits3", "mnist-writers")


def shrunk(cell: PaperCell) -> Tree:
    """The keys that make a cell tiny: the first of some sizes with which its federation can be made."""
    keys = {**COMMON, "split.heldout": 0}
    if "heldout" in str(cell.item.columns):
        keys["split.heldout"] = 2
    data = cell.config.data.name
    if not is_here(data):
        if data in NO_PICTURES:
            pytest.skip("skipped: no data")
        keys |= {"data": {"name": "digits"}}
        if data in BY_WRITERS:
            keys["split.partition"] = "iid"
    if "width" in type(cell.config.model).model_fields:
        keys["model.width"] = 0.1
    if cell.config.eval.classes is True:
        keys["eval.classes"] = "auto"  # some of the test set
    for sizes in _sizes():
        tiny = unflatten({**keys, **sizes})
        try:
            federation_of(make_config(_without_data(cell.tree) if "data" in keys else cell.tree, tiny))
        except PolyfedError:
            continue
        return tiny
    raise AssertionError(f"{cell.name} cannot be made small")


def _sizes() -> Iterator[Tree]:
    for clients in ({"split.clients": 4}, {"split.clients": 5}, {"split.clients": 10}, {}):
        for limit in (40, 100):
            yield {**clients, "data.limit": limit, "split.longtail": 1.0}
            yield {**clients, "data.limit": limit}


def _without_data(tree: Tree) -> Tree:
    split = {key: value for key, value in tree.get("split", {}).items() if key != "rounding"}  # of users alone
    return {**{key: value for key, value in tree.items() if key != "data"}, "split": split}


def tiny(item: Item, rows: int) -> Item:
    """An item with its first panel and a few of its rows, all tiny."""
    scale = "cpu" if "cpu" in item.scales else "paper"
    cells = cells_of(item, scale, seeds=1)
    panel = cells[0].panel
    tree = item.model_dump(exclude={"claims", "printed", "findings", "misprints", "averages"})
    tree["scales"] = {scale: {**tree["scales"][scale], "seeds": 1}}
    if item.demo:
        keys = demo_of(item.demo).keys.tiny
        tree["panels"] = {panel: _over(tree["panels"][panel], scale, keys)}
        return Item.model_validate(tree)
    here = [cell for cell in cells if cell.panel == panel]
    options = tree["figure"]["options"] if tree["figure"] else {}
    wanted = [cell for cell in here if cell.row in (options.get("better"), options.get("than"))]
    chosen = {cell.row: cell for cell in wanted or [here[0], here[-1]]}
    chosen = dict(list(chosen.items())[: max(rows, len(wanted))])
    tree["rows"] = {row: _small_row(tree["rows"][row], cell, scale) for row, cell in chosen.items()}
    if not is_here(cells[0].config.data.name):
        for part in (tree["keys"], *(one["keys"] for one in tree["scales"].values()), *_all(tree["panels"])):
            part.pop("data", None)
            part.get("split", {}).pop("rounding", None)  # a key of the partition by users, which digits do not have
    tree["panels"] = {panel: tree["panels"][panel]}
    if tree["figure"]:
        tree["figure"] |= {"rows": [], "panels": []}
    return Item.model_validate(tree)


def _small_row(row: dict[str, Any], cell: PaperCell, scale: str) -> dict[str, Any]:
    return {**_over(row, scale, shrunk(cell)), "panels": []}


def _over(section: dict[str, Any], scale: str, keys: Tree) -> dict[str, Any]:
    return {**section, scale: merge(unflatten(section[scale]), keys)}


def _all(panels: dict[str, Any]) -> Iterator[Tree]:
    for panel in panels.values():
        yield from (panel["keys"], panel["paper"], panel["cpu"])


def try_out(item: Item, folder: Path, rows: int) -> None:
    """Run it, and look at what comes out."""
    needed = _data(item)
    if "folder" in needed:
        pytest.skip("skipped: no data")  # samples that only the reader may have
    if item.demo and not all(map(is_here, needed)):
        pytest.skip("skipped: no data")
    small = tiny(item, rows)
    scale = next(iter(small.scales))
    (found,) = reproduce([small], Wish(scale, who={"jobs": 1}), Store(folder / "store"), folder, Silent())
    assert not found.failures, found.failures
    assert not found.missing
    assert any(line.end for line in found.lines)
    assert found.markdown().startswith("### ")
    made = picture(found, folder / f"{small.id}-{scale}")
    assert (made is not None) == bool(small.figure or small.demo)
    if made is not None:
        assert len(made.table.splitlines()) > 1
        made.close()


def _data(item: Item) -> list[str]:
    return data_of([cell for scale in item.scales for cell in cells_of(item, scale, seeds=1)])


def _first(paper: str) -> Item:
    """An item of a paper that is quick to try."""
    items = find_items([paper])
    return next((i for i in items if not i.demo and all(map(is_here, _data(i)))), items[0])


@pytest.mark.parametrize("paper", sorted({name.split(".")[0] for name in EXPECTED}))
def test_one_item_of_every_paper(paper: str, tmp_path: Path) -> None:
    try_out(_first(paper), tmp_path, rows=1)


@pytest.mark.slow
@pytest.mark.parametrize("item", find_items(), ids=lambda item: item.id)
def test_every_item(item: Item, tmp_path: Path) -> None:
    try_out(item, tmp_path, rows=2)
