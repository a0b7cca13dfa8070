"""The worlds with natural clients in the page of results: a table of methods by worlds."""

from pathlib import Path

from tiny_paper import room

from polyfed.papers.page import results_page
from polyfed.papers.store import Store
from polyfed.papers.worlds import FILE, worlds_section

NUMBERS = """world,row,seed,accuracy,fingerprint
wisdm,fedavg,0,0.5,aa
wisdm,fedavg,1,0.7,bb
wisdm,local,0,0.25,cc
pacs,fedavg,0,0.2,dd
"""


def test_methods_are_lines_and_worlds_are_columns(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(NUMBERS)
    table = worlds_section(tmp_path).strip().splitlines()[-4:]
    assert table == [
        "| method | wisdm | pacs |",
        "| --- | ---: | ---: |",
        "| `fedavg` | 60.0 ± 14.1 | 20.0 |",
        "| `local` | 25.0 | – |",
    ]


def test_the_page_of_results_ends_in_the_worlds_that_a_store_has(tmp_path: Path) -> None:
    recipes, store = room(tmp_path / "recipes"), Store(tmp_path / "results")
    store.path.mkdir()
    assert "## Worlds" not in results_page(store, recipes)
    (store.path / FILE).write_text(NUMBERS)
    assert results_page(store, recipes).endswith("| `local` | 25.0 | – |\n")
