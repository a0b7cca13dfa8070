"""A drawing of several panels over different numbers of the setting, such as MuPFL's Figure 7."""

from collections.abc import Mapping
from dataclasses import replace

from polyfed.papers.found import ItemFound
from polyfed.papers.recipe import Figure
from polyfed.report.charts import Panel


def lines_of(found: ItemFound) -> list[Panel]:
    """Lines as `lines` draws them, a panel for each number: `options: {of: {LABEL: {NAME: number}}}`."""
    from polyfed.papers.drawings import lines

    figure = found.item.figure or Figure(kind="lines-of")
    of: Mapping[str, Mapping[str, float]] = figure.options.get("of", {})
    made: list[Panel] = []
    for label, at in of.items():
        there = {name: number for name, number in at.items() if name in {*found.item.rows, *found.item.panels}}
        own = figure.model_copy(update={"x": label, "options": {"at": there}})
        made += lines(replace(found, item=found.item.model_copy(update={"figure": own}))) if there else []
    return made
