"""Tables in pages that people write: docs/threats.md holds what the store says, and nothing beside a place changes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_paper import fill, item, room

from polyfed.errors import UsageError
from polyfed.papers import recipe as room_of_recipes
from polyfed.papers.cell import cells_of
from polyfed.papers.found import ItemFound
from polyfed.papers.places import filled, has_places, short_table
from polyfed.papers.store import Store

REPO = Path(__file__).parents[2]
PLACE = "<!-- tiny.table1, scale cpu: polyfed reproduce --write-docs page.md -->\n{}<!-- end of tiny.table1 -->"
NUMBERS = {
    ("alpha 1", "FedAvg", 0): (0.0, 0.5),
    ("alpha 1", "FedAvg", 1): (0.0, 0.7),
    ("alpha 9", "FedPer", 0): (0.0, 0.25),
}


def test_the_tables_of_attacks_and_defences_are_what_the_store_says() -> None:
    """After new cells: polyfed reproduce --write-docs docs/threats.md."""
    page = (REPO / "docs" / "threats.md").read_text(encoding="utf-8")
    assert page.count("\n<!-- distfl.table") == 3
    assert page == filled(page, Store.open(REPO / "results"))


def _store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "results")
    fill(store, cells_of(item(room(tmp_path / "recipes")), "cpu"), NUMBERS)
    return store


def test_a_place_is_filled_and_filled_again_with_the_same(tmp_path: Path) -> None:
    store, recipes = _store(tmp_path), tmp_path / "recipes"
    page = f"# A page\n\n{PLACE.format('old')}\n\nThe end.\n"
    made = filled(page, store, recipes)
    assert made.startswith("# A page\n\n<!-- tiny.table1, scale cpu: ")
    assert made.endswith("<!-- end of tiny.table1 -->\n\nThe end.\n")
    assert "old" not in made
    assert "`tiny.table1`, scale cpu: 3 of 10 cells, up to 2 seeds." in made
    assert "| FedAvg | – / 60.0 ± 14.1 | – |\n" in made
    assert "| FedAvg, tuned | – | – |\n" in made
    assert "| FedPer | – | 25.0 / 25.0 |\n" in made  # one seed has no spread, and both columns read one number
    assert filled(made, store, recipes) == made


def test_the_fewer_names_stand_across(tmp_path: Path) -> None:
    store, recipes = _store(tmp_path), tmp_path / "recipes"
    table = item(recipes)

    def head(found: ItemFound) -> str:
        return short_table(found).splitlines()[0]

    cells = cells_of(table, "cpu")
    assert head(ItemFound.of(table, "cpu", cells, store)) == "| GA / PA | alpha 1 | alpha 9 |"
    one = [cell for cell in cells if cell.row == "FedAvg"]
    turned = ItemFound.of(table, "cpu", one, store)
    assert head(turned) == "| GA / PA | FedAvg |"
    assert "| alpha 1 | – / 60.0 ± 14.1 |" in short_table(turned)
    single = item(recipes, "table2")
    assert head(ItemFound.of(single, "cpu", cells_of(single, "cpu"), store)) == "|  | PA_sel |"


def test_places_that_cannot_be_filled(tmp_path: Path) -> None:
    store, recipes = _store(tmp_path), tmp_path / "recipes"
    page = PLACE.format("")
    with pytest.raises(UsageError, match="asks for scale huge: there is cpu and paper"):
        filled(page.replace("scale cpu", "scale huge"), store, recipes)
    with pytest.raises(UsageError, match=r"there is no table or figure 'tiny\.tablet'"):
        filled(page.replace("table1", "tablet"), store, recipes)
    open_one = page.replace("end of", "ending")
    assert has_places(open_one)
    with pytest.raises(UsageError, match="a place for a table without an end"):
        filled(open_one, store, recipes)
    assert not has_places("# A page\n")


def test_the_command_fills_a_page_that_has_places_and_writes_one_that_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Callable[..., Any]
) -> None:
    _store(tmp_path)
    monkeypatch.setattr(room_of_recipes, "HERE", tmp_path / "recipes")
    page, results = tmp_path / "page.md", tmp_path / "results.md"
    page.write_text(f"# A page\n\n{PLACE.format('')}\n")
    for file in (page, results):
        said = cli("reproduce", "--store", str(tmp_path / "results"), "--write-docs", str(file))
        assert said.code == 0, said.err
    assert page.read_text().startswith("# A page\n")
    assert "60.0 ± 14.1" in page.read_text()
    assert results.read_text().startswith("# Results\n")
    broken = page.read_text().replace("end of", "ending")
    page.write_text(broken)
    said = cli("reproduce", "--store", str(tmp_path / "results"), "--write-docs", str(page))
    assert said.code != 0
    assert "without an end" in said.err
    assert page.read_text() == broken
