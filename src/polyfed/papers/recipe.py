"""A recipe: one table or figure of a paper as data, with its grid, printed numbers, claims and two scales."""

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from polyfed.config import Tree, read_yaml
from polyfed.errors import UsageError, did_you_mean
from polyfed.registry import contradiction, explain

HERE = Path(__file__).parent / "recipes"
SCALES = ("paper", "cpu")
ALL = "all"  # the panel of a table that has no settings
Spot = tuple[str, str, str]  # panel, row, column
Names = Annotated[tuple[str, ...], BeforeValidator(lambda given: (given,) if isinstance(given, str) else given)]


class Strict(BaseModel):
    """Keys of a recipe; one that is not known is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Scale(Strict):
    """How large an item is run: its seeds, its keys, and in words what departs from the paper."""

    seeds: int = Field(3, ge=1)
    note: str = ""
    keys: Tree = {}


class Panel(Strict):
    """A setting: keys at both scales, and keys at one of them."""

    keys: Tree = {}
    paper: Tree = {}
    cpu: Tree = {}


class Row(Panel):
    """A method with its settings; a control is a row that the paper does not print."""

    control: bool = False
    panels: Names = ()  # only there; nothing means everywhere
    reads: dict[str, str] = {}  # another number for a column
    keeps: Names = ()  # what the store keeps of it for pictures of other items: clients, classes


class Claim(Strict):
    """What a paper says of its numbers: one is above another, or above (below) a value.

    Rows are compared (`better`, `than`), or panels of a row (`row`, `better_panel`, `than_panel`), or columns of a row
    (`row`, `better_column`, `than_column`), or a number with a value (`row`, `above` or `below`). Several names stand
    for several pairs, and the claim holds only if every pair does. `lower` says that the smaller number is better, and
    `within` is how far the better one may lie behind, in the unit that is shown.
    """

    says: str
    better: str | None = None
    than: Names = ()
    row: Names = ()
    better_panel: str | None = None
    than_panel: Names = ()
    better_column: str | None = None
    than_column: Names = ()
    above: float | None = None
    below: float | None = None
    column: str = ""  # by default the first
    panels: Names = ()  # by default all
    expected: Literal["S", "F"] = "S"  # S: should hold scaled down; F: fragile, reported only
    within: float = Field(0.0, ge=0)
    lower: bool = False

    @model_validator(mode="after")
    def _one_form(self) -> "Claim":
        forms = [
            self.better is not None and bool(self.than),
            self.better_panel is not None and bool(self.than_panel) and bool(self.row),
            self.better_column is not None and bool(self.than_column) and bool(self.row),
            (self.above is None) != (self.below is None) and bool(self.row),
        ]
        if sum(forms) != 1:
            raise contradiction(
                f"the claim '{self.says}' must be exactly one of: better and than; row, better_panel and than_panel; "
                "row, better_column and than_column; row and above or below"
            )
        return self

    def pairs(self, item: "Item") -> list[tuple[Spot, Spot | float]]:
        """What is compared with what; a pair whose rows are not both in a panel is none of them."""
        column = self.column or next(iter(item.columns), "")
        made: list[tuple[Spot, Spot | float]] = []
        if self.better_panel is not None:
            return [
                ((self.better_panel, row, column), (other, row, column))
                for row in self.row
                for other in self.than_panel
            ]
        for panel in self.panels or item.panels:
            if self.better is not None:
                made += [((panel, self.better, column), (panel, other, column)) for other in self.than]
            elif self.better_column is not None:
                ours = self.better_column
                made += [((panel, row, ours), (panel, row, other)) for row in self.row for other in self.than_column]
            else:
                value = self.above if self.above is not None else self.below
                made += [((panel, row, column), float(value or 0.0)) for row in self.row]
        return [pair for pair in made if all(item.has(spot) for spot in pair if isinstance(spot, tuple))]

    @property
    def less(self) -> bool:
        """Whether the smaller number is the better one."""
        return self.lower or self.below is not None


class Figure(Strict):
    """How an item is drawn: a kind of polyfed.papers.drawings, of `polyfed figure`, or of its demo."""

    kind: str
    x: str = ""
    y: str = ""
    rows: Names = ()
    panels: Names = ()
    options: Tree = {}


class Item(Strict):
    """One table or figure of a paper."""

    paper: str
    name: str
    title: str
    place: str
    note: str = ""
    needs: Names = ()
    keys: Tree = {}
    scales: dict[str, Scale]
    panels: dict[str, Panel] = {ALL: Panel()}
    averages: dict[str, Names] = {}  # means over panels (over all where none is named), each shown like a panel
    columns: dict[str, str] = {}
    plain: Names = ()  # columns that are no fractions and are shown as they are
    rows: dict[str, Row] = {}
    printed: dict[str, dict[str, list[float | None]]] = {}
    claims: tuple[Claim, ...] = ()
    findings: dict[str, str | dict[str, str]] = {}  # by claim; where scales differ, by scale
    misprints: tuple[str, ...] = ()
    figure: Figure | None = None
    demo: str = ""
    judged: Literal["third", "end"] = "third"  # claims go by the mean of the last third of evaluations, or by the end

    @property
    def id(self) -> str:
        """What it goes by on a command line: `mupfl.table2`."""
        return f"{self.paper}.{self.name}"

    @property
    def standin(self) -> bool:
        """Whether other data stand in for those of the paper."""
        return self.name.endswith("-standin")

    def has(self, spot: Spot) -> bool:
        """Whether there is such a cell; what rows a demo has is known only once it has run."""
        panel, row, column = spot
        if panel in self.averages:
            return all(self.has((one, row, column)) for one in self.averaged(panel))
        if self.demo:
            return panel in self.panels
        return panel in self.panels and row in self.rows and panel in (self.rows[row].panels or self.panels)

    def averaged(self, average: str) -> tuple[str, ...]:
        """The panels that an average is the mean of."""
        return self.averages[average] or tuple(self.panels)

    @property
    def shown(self) -> tuple[str, ...]:
        """The panels and averages."""
        return (*self.panels, *self.averages)

    def of(self, row: str, column: str) -> str:
        """The place in a summary of the number that a row shows in a column."""
        return self.rows[row].reads.get(column, self.columns[column])

    def percent(self, column: str) -> bool:
        """Whether a column is shown in per cent."""
        return not self.demo and column not in self.plain

    @model_validator(mode="after")
    def _whole(self) -> "Item":
        for complaint in self._complaints():
            raise contradiction(f"{self.id}: {complaint}")
        return self

    def _complaints(self) -> Iterator[str]:
        """What is wrong, in words."""
        if bool(self.rows) == bool(self.demo):
            yield "it must have either rows or a demo"
        if self.rows and not self.columns:
            yield "it has rows but no columns"
        if not self.scales:
            yield "it has no scale"
        yield from self._strange("scales", self.scales, SCALES)
        yield from self._strange("a row's panels", [p for row in self.rows.values() for p in row.panels], self.panels)
        yield from self._strange("a row's reads", [c for row in self.rows.values() for c in row.reads], self.columns)
        yield from self._strange("plain", self.plain, self.columns)
        yield from self._strange("averages", [p for of in self.averages.values() for p in of], self.panels)
        if set(self.averages) & set(self.panels):
            yield "an average has the name of a panel"
        yield from self._strange("printed", self.printed, self.shown)
        for panel, rows in self.printed.items():
            if not self.demo:
                yield from self._strange(f"printed, '{panel}'", rows, self.rows)
                wrong = [row for row, numbers in rows.items() if len(numbers) != len(self.columns)]
                if wrong:
                    yield f"printed, '{panel}': row '{wrong[0]}' must have {len(self.columns)} numbers"
        for claim in self.claims:
            yield from self._strange_claim(claim)
        yield from self._strange("findings", self.findings, [claim.says for claim in self.claims])
        by_scale = [found for found in self.findings.values() if isinstance(found, dict)]
        yield from self._strange("findings", [scale for found in by_scale for scale in found], self.scales)

    def _strange_claim(self, claim: Claim) -> Iterator[str]:
        where = f"the claim '{claim.says}'"
        panels = [*claim.panels, *claim.than_panel, *([claim.better_panel] if claim.better_panel else [])]
        yield from self._strange(where, panels, self.shown)
        if self.demo:
            return
        rows = [*claim.than, *claim.row, *([claim.better] if claim.better else [])]
        columns = [c for c in (claim.column, claim.better_column, *claim.than_column) if c]
        yield from self._strange(where, rows, self.rows)
        yield from self._strange(where, columns, self.columns)
        if not claim.pairs(self):
            yield f"{where} compares nothing: its rows are not in its panels"

    @staticmethod
    def _strange(where: str, names: Any, known: Any) -> Iterator[str]:
        for name in names:
            if name not in known:
                yield f"{where} names '{name}'; {did_you_mean(name, known)}"


def papers(folder: Path | None = None) -> tuple[str, ...]:
    """The papers there are recipes of."""
    return tuple(sorted(path.stem for path in (folder or HERE).glob("*.yaml")))


def read_items(paper: str, folder: Path | None = None) -> tuple[Item, ...]:
    """The items of a paper."""
    if paper not in papers(folder):
        raise UsageError(f"there is no recipe for '{paper}'; {did_you_mean(paper, papers(folder))}")
    return _items(paper, ((folder or HERE) / f"{paper}.yaml").read_text(encoding="utf-8"))


@cache
def _items(paper: str, text: str) -> tuple[Item, ...]:
    tree = read_yaml(text, f"recipe '{paper}'")
    if not isinstance(tree, dict):
        raise UsageError(f"recipe '{paper}' must hold tables and figures by their names")
    return tuple(_item(paper, str(name), one) for name, one in tree.items())


def _item(paper: str, name: str, tree: Any) -> Item:
    if not isinstance(tree, dict):
        raise UsageError(f"recipe '{paper}.{name}' must hold keys and values")
    try:
        return Item(**{**tree, "paper": paper, "name": name})
    except ValidationError as error:
        raise UsageError(explain(error, f"{paper}.{name}", set(Item.model_fields), "a recipe")) from None


def find_items(words: Sequence[str] = (), folder: Path | None = None) -> list[Item]:
    """The items that are named, each as `mupfl.table2` or as a whole paper; all where none is named."""
    every = {item.id: item for paper in papers(folder) for item in read_items(paper, folder)}
    found: dict[str, Item] = {}
    for word in words or papers(folder):
        chosen = {id: item for id, item in every.items() if word in (id, item.paper)}
        if not chosen:
            raise UsageError(f"there is no table or figure '{word}'; {did_you_mean(word, [*papers(folder), *every])}")
        found |= chosen
    return list(found.values())
