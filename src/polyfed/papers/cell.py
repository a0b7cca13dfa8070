"""A cell of a recipe: one row in one panel at one scale with one seed, and the experiment that it is."""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any

from polyfed.comparison.grid import experiment
from polyfed.config import Config, Tree, make_config, merge, unflatten
from polyfed.errors import UsageError
from polyfed.papers.demos import demo_of
from polyfed.papers.recipe import Item

EVALUATED = {"eval.ga": "all"}  # results are judged on the last third of evaluations, so all take the whole test set
DEMO = "demo"  # the row of an item that is no comparison of runs


@dataclass(frozen=True, eq=False)
class PaperCell:
    """Where a cell stands, and what is run there; `first` is the same with the first seed, if that is another."""

    item: Item
    scale: str
    panel: str
    row: str
    seed: int
    first: "PaperCell | None" = None

    @property
    def name(self) -> str:
        """Its name in sentences."""
        return f"{self.item.id} ({self.scale}), {self.panel}, {self.row}, seed {self.seed}"

    @property
    def file(self) -> str:
        """Its file below a store."""
        folder = f"{self.item.paper}/{self.item.name}/{self.scale}/{slug(self.panel)}"
        return f"{folder}/{slug(self.row)}-s{self.seed}.json"

    @property
    def layers(self) -> list[Tree]:
        """Its keys, the later over the earlier: those of its setting, then the row's."""
        if self.item.demo:
            return self._common
        row = self.item.rows[self.row]
        return [unflatten(EVALUATED), *self._common, unflatten(row.keys), unflatten(getattr(row, self.scale))]

    @property
    def _common(self) -> list[Tree]:
        """The keys that all rows of its setting have: common ones, the scale's, the panel's."""
        item, panel = self.item, self.item.panels[self.panel]
        layers = (item.keys, item.scales[self.scale].keys, panel.keys, getattr(panel, self.scale))
        return [unflatten(layer) for layer in layers]

    @property
    def tree(self) -> Tree:
        """All its keys in one tree."""
        return reduce(merge, self.layers)

    @property
    def setting(self) -> Tree:
        """The same without the row's."""
        return reduce(merge, self._common)

    @cached_property
    def config(self) -> Config:
        """Its experiment, checked."""
        if self.first is not None:
            return self.first.config.model_copy(update={"seed": self.seed})
        try:
            return make_config(*self.layers, {"seed": self.seed})
        except UsageError as error:
            raise UsageError(f"{self.name}: {error}") from None

    @cached_property
    def trained(self) -> list[tuple[Config, float]]:
        """The experiments that it trains, each with how many times over: its own, or those of its demo."""
        if not self.item.demo:
            return [(self.config, 1.0)]
        keys = demo_of(self.item.demo).checked(self.tree)
        return [(make_config(tree), times) for tree, times in keys.trains()]

    @cached_property
    def identity(self) -> str:
        """A hash of what decides its numbers: equal cells of different items are the same experiment."""
        return digest(self.counting)

    @cached_property
    def counting(self) -> Tree:
        """What decides its numbers."""
        if self.first is not None:
            return {**self.first.counting, "seed": self.seed}
        if self.item.demo:
            return {"demo": self.item.demo, "seed": self.seed, "keys": self.tree}
        return _counting(experiment(self.config))


def _counting(tree: Tree) -> Tree:
    """Without what is only a place or a pace: where data lie, how often a run is saved, on which device it runs."""
    data = {key: value for key, value in tree["data"].items() if key not in ("root", "file")}
    evaluated = {key: value for key, value in tree["eval"].items() if (key, value) != ("ga", "all")}  # as it always was
    counting = {key: value for key, value in tree.items() if key not in ("checkpoint", "device")}
    return {**counting, "data": data, "eval": evaluated}


def digest(value: Any) -> str:
    """A short hash of plain data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def slug(name: str) -> str:
    """A name as a file can have it; what differs only in signs keeps apart by the signs' words."""
    words = name.replace("+", " plus ").replace("%", " percent ")
    return re.sub(r"[^A-Za-z0-9.]+", "-", words).strip("-.").lower() or "all"


def cells_of(item: Item, scale: str, seeds: int | None = None, only: str = "", rows: str = "") -> list[PaperCell]:
    """The cells of an item at a scale, seeds outermost; `only` and `rows` are texts in the names of panels and rows.

    `A|B` takes the names with either text.
    """
    if scale not in item.scales:
        raise UsageError(f"{item.id} has no scale '{scale}'; it has {', '.join(item.scales)}")
    count = seeds if seeds is not None else item.scales[scale].seeds
    places = [place for place in _places(item) if _has_text(place[0], only) and _has_text(place[1], rows)]
    firsts = [PaperCell(item, scale, *place, 0) for place in places]
    return firsts + [replace(first, seed=seed, first=first) for seed in range(1, count) for first in firsts]


def _has_text(name: str, texts: str) -> bool:
    return any(text.strip() in name.casefold() for text in texts.casefold().split("|"))


def _places(item: Item) -> Iterator[tuple[str, str]]:
    for panel in item.panels:
        for row, keys in item.rows.items():
            if panel in (keys.panels or item.panels):
                yield panel, row
        if item.demo:
            yield panel, DEMO
