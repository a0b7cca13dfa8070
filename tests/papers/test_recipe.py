"""Recipes: all of them can be read, what they name is there, and a mistake is one sentence."""

import math
import re
from pathlib import Path

import pytest
from tiny_paper import EXPECTED, TINY, item, room

from polyfed.data.longtail import tail_sizes
from polyfed.errors import UsageError
from polyfed.papers.cell import PaperCell, cells_of, slug
from polyfed.papers.demos import demo_of
from polyfed.papers.drawings import DRAWINGS
from polyfed.papers.recipe import Item, Spot, find_items
from polyfed.report.kinds import KINDS


def test_there_are_47_tables_and_figures_to_regenerate() -> None:
    assert len(EXPECTED) == len(set(EXPECTED)) == 47


def test_nothing_is_listed_that_no_paper_has() -> None:
    """Stand-ins, and what goes beyond the paper in its setting, are named after the table or figure they belong to."""
    assert {re.sub("-(standin|beyond|dp)$", "", i.id) for i in find_items()} <= set(EXPECTED)


def test_every_table_and_figure_has_a_recipe() -> None:
    assert set(EXPECTED) <= {i.id for i in find_items()}


@pytest.mark.parametrize("given", find_items(), ids=lambda given: given.id)
def test_every_recipe_is_sound(given: Item) -> None:
    """Every cell is an experiment that can be made, and has a file of its own; figures and demos are known."""
    if given.figure and not given.demo:
        assert given.figure.kind in {*DRAWINGS, *KINDS}
    for scale in given.scales:
        cells = cells_of(given, scale, seeds=1)
        assert cells
        assert len({cell.file for cell in cells}) == len(cells)
        for cell in cells:
            if given.demo:
                demo_of(given.demo).checked(cell.tree)
            else:
                assert cell.config.rounds >= 1


def test_a_standin_says_so_in_its_title() -> None:
    for given in find_items():
        assert not given.standin or "stand" in given.title.lower(), given.id


@pytest.mark.parametrize("id", ["distfl.table3", "distfl.table3-standin", "distfl.figure5", "distfl.figure5-standin"])
def test_columns_have_the_names_of_the_domains_whose_clients_they_show(id: str) -> None:
    """Clients follow the domains of their source, in its order."""
    (given,) = find_items([id])
    domains = cells_of(given, "cpu", seeds=1)[0].config.data.domains
    for column, path in given.columns.items():
        if path.startswith("part:"):
            number, of = map(int, path.removeprefix("part:").split("/"))
            assert slug(column) == slug(domains[(number - 1) * len(domains) // of])


def test_a_cell_has_the_keys_of_scale_panel_and_row(tmp_path: Path) -> None:
    cells = cells_of(item(room(tmp_path)), "cpu")
    last = next(cell for cell in cells if (cell.panel, cell.row, cell.seed) == ("alpha 9", "FedPer", 1))
    assert (last.config.rounds, last.config.split.partition.alpha, last.config.method.name) == (3, 9.0, "fedper")
    assert last.config.seed == 1
    assert last.file == "tiny/table1/cpu/alpha-9/fedper-s1.json"
    assert cells_of(item(room(tmp_path)), "paper")[0].config.rounds == 4


def test_a_row_may_stand_in_some_panels_only(tmp_path: Path) -> None:
    cells = cells_of(item(room(tmp_path)), "cpu")
    assert len(cells) == 2 * (3 + 2)
    assert {cell.panel for cell in cells if cell.row == "FedAvg, tuned"} == {"alpha 1"}
    assert len(cells_of(item(room(tmp_path)), "cpu", 1, only="ALPHA 9", rows="per")) == 1
    either = cells_of(item(room(tmp_path)), "cpu", 1, only="alpha 1|alpha 9", rows="tuned|PER")
    assert [(cell.panel, cell.row) for cell in either] == [
        ("alpha 1", "FedAvg, tuned"),
        ("alpha 1", "FedPer"),
        ("alpha 9", "FedPer"),
    ]


def test_where_data_lie_and_how_often_is_saved_makes_no_other_experiment(tmp_path: Path) -> None:
    other = TINY.replace("{name: digits, limit: 12}", "{name: digits, limit: 12, root: /elsewhere}", 1)
    other = other.replace("engine: {workers: 0}", "engine: {workers: 2}\n    checkpoint: {every: 3}", 1)
    cells = cells_of(item(room(tmp_path / "a")), "cpu")
    again = cells_of(item(room(tmp_path / "b", other)), "cpu")
    longer = cells_of(item(room(tmp_path / "c", TINY.replace("rounds: 3}}", "rounds: 5}}"))), "cpu")
    assert [cell.identity for cell in cells] == [cell.identity for cell in again]
    assert not {cell.identity for cell in cells} & {cell.identity for cell in longer}


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ("FedAvg: [30.5, null]", "FedAgv: [30.5, null]", "names 'FedAgv'; did you mean 'FedAvg'"),
        ("[30.5, null]", "[30.5]", "row 'FedAvg' must have 2 numbers"),
        ("better: FedPer", "better: FedPre", "names 'FedPre'; did you mean 'FedPer'"),
        ("better: FedPer, than: [FedAvg], ", "better: FedPer, ", "must be exactly one of"),
        ('panels: ["alpha 1"]', 'panels: ["alpha 2"]', "names 'alpha 2'"),
        ("misprints:", "misprint:", "unknown key 'tiny.table1.misprint'"),
        ('{"FedPer is best": "N', '{"FedPer is bst": "N', "findings names 'FedPer is bst'"),
        ('"Nothing was tried."}', "{bpu: Nothing}}", "findings names 'bpu'; did you mean 'cpu'"),
        ("demo: tail", "note: nothing", "either rows or a demo"),
        ("reads: {GA:", "reads: {AG:", "a row's reads names 'AG'"),
        ("  columns: {GA", '  averages: {both: ["alpha 3"]}\n  columns: {GA', "averages names 'alpha 3'"),
        ("  columns: {GA", '  averages: {"alpha 1": []}\n  columns: {GA', "an average has the name of a panel"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, before: str, after: str, sentence: str) -> None:
    assert before in TINY
    with pytest.raises(UsageError, match=sentence.replace("(", r"\(")):
        find_items(["tiny"], room(tmp_path, TINY.replace(before, after)))


def test_an_unknown_item_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'mupfl'"):
        find_items(["muplf"])
    with pytest.raises(UsageError, match=r"did you mean 'mupfl\.table6'"):
        find_items(["mupfl.tabel6"])


def test_names_as_files() -> None:
    assert slug("FedAvg+local") != slug("FedAvg local")
    assert slug("fashion-mnist, IF 10, alpha 0.5") == "fashion-mnist-if-10-alpha-0.5"
    assert slug("../etc") == "etc"


def _printed(given: Item, spot: Spot | float) -> float | None:
    """The number that the paper prints there."""
    if isinstance(spot, float):
        return spot
    panel, row, column = spot
    numbers = given.printed.get(panel, {}).get(row, [])
    return dict(zip(given.columns, numbers, strict=False)).get(column)


@pytest.mark.parametrize("given", [i for i in find_items() if i.printed and not i.demo], ids=lambda given: given.id)
def test_no_claim_says_what_the_papers_own_numbers_deny(given: Item) -> None:
    for claim in given.claims:
        for pair in claim.pairs(given):
            ours, theirs = (_printed(given, spot) for spot in pair)
            if ours is not None and theirs is not None:
                ahead = theirs - ours if claim.less else ours - theirs
                assert ahead >= -claim.within, (claim.says, pair)


# ---- the cpu scale is long enough (a tenth of the paper's steps on the shared model)

SAMPLES = {"fashion-mnist": 60000, "mnist": 60000, "cifar10": 50000, "cifar100": 50000, "cinic10": 90000}
SAMPLES |= {"tiny-imagenet": 100000}
CLASSES = {"cifar100": 100, "tiny-imagenet": 200}
LEAST = 0.1


def _steps(cell: PaperCell) -> float | None:
    """A client's steps in a run, which are those of the shared model; None where the data decide who holds what."""
    config = cell.config
    name, limit = config.data.name, getattr(config.data, "limit", None)
    if config.split.partition.by or name not in SAMPLES:
        return None
    classes = 20 if getattr(config.data, "labels", "") == "coarse" else CLASSES.get(name, 10)
    each = min(SAMPLES[name] // classes, limit or SAMPLES[name])
    held = sum(tail_sizes(each, classes, config.split.longtail).tolist()) / config.split.clients
    test = config.split.test if isinstance(config.split.test, float) else 0.0
    return config.rounds * config.train.steps(math.ceil((1 - test) * held / config.train.batch))


@pytest.mark.parametrize("given", [i for i in find_items() if set(i.scales) == {"paper", "cpu"} and not i.demo])
def test_the_cpu_scale_has_a_tenth_of_the_papers_steps(given: Item) -> None:
    """Less than that compares networks that have learnt nothing."""
    steps = {(s, c.panel, c.row): _steps(c) for s in given.scales for c in cells_of(given, s, seeds=1)}
    short = {
        place[1:]: (many, paper)
        for place, many in steps.items()
        if place[0] == "cpu" and many is not None and (paper := steps["paper", *place[1:]]) is not None
        if many < LEAST * paper
    }
    assert not short
