"""The store: cells once, small, stale when recipe or sources change, and what is kept of a run."""

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_paper import TINY, item, room, stored

from polyfed.errors import DataError
from polyfed.papers import sources
from polyfed.papers.cell import cells_of
from polyfed.papers.found import ItemFound
from polyfed.papers.store import Store, _four, _thinned, _thirds, read_cell


def test_a_cell_is_read_back_as_it_was_put(tmp_path: Path) -> None:
    cell = cells_of(item(room(tmp_path / "r")), "cpu")[0]
    store = Store(tmp_path / "results")
    store.put(cell, stored(cell, 0.5, 0.6))
    again = Store.open(tmp_path / "results")
    found = again.current(cell)
    assert found is not None
    assert (found.mean_of_third("personal.accuracy"), found.last("personal.accuracy")) == (0.5, 0.6)
    assert found.curve("personal.accuracy") == [(2, 0.5), (3, 0.6)]
    assert again.stale(cell) is None


def test_a_cell_by_other_sources_is_stale_kept_and_not_shown(tmp_path: Path) -> None:
    cells = cells_of(item(room(tmp_path / "r")), "cpu")
    store = Store(tmp_path / "results")
    store.put(cells[0], stored(cells[0], 0.5, 0.6, sources="another"))
    found = ItemFound.of(cells[0].item, "cpu", cells, store)
    assert (len(found.current), len(found.stale), len(found.missing)) == (0, 1, len(cells))
    assert "0 of 10 cells, 1 stale" in found.markdown()
    assert "50.00" not in found.markdown()
    store.put(cells[0], stored(cells[0], 0.7, 0.8))
    again = Store.open(tmp_path / "results")
    assert again.current(cells[0]) is not None
    old = [one for one in again.found.values() if one.sources == "another"]
    assert [one.final["personal.accuracy"] for one in old] == [0.6]


def test_a_cell_of_another_recipe_is_stale(tmp_path: Path) -> None:
    cell = cells_of(item(room(tmp_path / "a")), "cpu")[0]
    store = Store(tmp_path / "results")
    store.put(cell, stored(cell, 0.5, 0.6))
    other = cells_of(item(room(tmp_path / "b", TINY.replace("rounds: 3}}", "rounds: 5}}"))), "cpu")[0]
    assert store.current(other) is None
    assert store.stale(other) is not None


def test_the_same_experiment_in_another_table_is_taken(tmp_path: Path) -> None:
    folder = room(tmp_path / "r")
    first, second = (cells_of(item(folder, name), "cpu")[0] for name in ("table1", "table2"))
    assert first.identity == second.identity
    store = Store(tmp_path / "results")
    store.put(first, stored(first, 0.5, 0.6))
    assert store.current(second) is not None


def test_what_is_no_cell_is_refused_in_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    for content in ("{", "[]", '{"item": 3}'):
        file.write_text(content)
        with pytest.raises(DataError, match="is no cell of a store"):
            read_cell(file)


def test_the_mean_of_the_last_third_by_hand() -> None:
    """Of 9 rounds, 7, 8 and 9 are the last third; where finishing changes a number, only the end counts."""
    series = {"global.accuracy": {3: 0.1, 6: 0.2, 7: 0.3, 9: 0.5}, "personal.accuracy": {6: 0.2, 9: 0.4}}
    made = _thirds(series, [3, 6, 7, 9], {"global.accuracy": 0.5, "personal.accuracy": 0.9}, 9)
    assert made == {"global.accuracy": 0.4, "personal.accuracy": 0.9}


def test_a_long_curve_is_thinned_from_its_end() -> None:
    made = _thinned({"global.accuracy": {n: n / 500 for n in range(1, 501)}}, list(range(1, 501)))
    assert len(made["round"]) <= 40
    assert made["round"][-1] == 500
    assert len(json.dumps(made)) < 1000


def test_sources_of_a_method_are_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Other sources of FedPer make FedPer's cells stale and leave FedAvg's alone; a part of the training loop, both."""
    cells = {cell.row: cell for cell in cells_of(item(room(tmp_path)), "cpu", seeds=1)}
    before = {row: sources.sources_of(cell) for row, cell in cells.items()}
    meaning = sources._meaning

    def changed(module: str) -> dict[str, bool]:
        sources._hash.cache_clear()
        monkeypatch.setattr(sources, "_meaning", lambda name: meaning(name) + ("x" if name == module else ""))
        found = {row: sources.sources_of(cell) != before[row] for row, cell in cells.items()}
        monkeypatch.setattr(sources, "_meaning", meaning)
        sources._hash.cache_clear()
        return found

    assert changed("polyfed.methods.fedper") == {"FedAvg": False, "FedAvg, tuned": False, "FedPer": True}
    everywhere = (
        "parts.fit",
        "methods.base",
        "methods.sites.site",
        "models.plain",
        "models.base",
        "data.split",
        "params",
    )
    for module in (f"polyfed.{name}" for name in everywhere):
        assert all(changed(module).values()), module
    assert not any(changed("polyfed.report.page").values())


def test_sources_of_a_demo_are_what_computes_it_and_what_its_experiments_choose(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    paced = TINY.replace("  demo: tail\n", "  demo: progress\n").replace("factor: 10.0", "experiment: {method: fedper}")
    figure = item(room(tmp_path, paced.replace("factor: 100.0", "experiment: {method: ditto}")), "figure1")
    named = {cell.panel: sources._reached(sources._named_by(cell)) for cell in cells_of(figure, "cpu")}
    assert "polyfed.methods.fedper" in named["IF 10"] - named["IF 100"]
    assert "polyfed.methods.ditto" in named["IF 100"] - named["IF 10"]
    both = named["IF 10"] & named["IF 100"]
    assert {"polyfed.papers.demos.pace", "polyfed.parts.fit", "polyfed.models.plain"} <= both
    assert "polyfed.papers.demos.mupfl_pictures" not in both  # a picture changes no number


def test_arrays_of_a_demo_have_four_digits() -> None:
    values = np.array([[123.456, 12.3456], [0.000123456, -1.0]])
    assert _four(values).tolist() == [[123.5, 12.35], [0.0001, -1.0]]


def test_words_in_a_source_change_nothing() -> None:
    tree = "def f(x):\n    return x\n"
    worded = '"""Module."""\n\ndef f(x):\n    """Doc."""\n    # why\n    return x\n'
    assert sources.meaning_of(worded) == sources.meaning_of(tree)
    assert sources.meaning_of("def f(x):\n    return -x\n") != sources.meaning_of(tree)


def test_a_row_can_keep_what_the_picture_of_another_item_needs(tmp_path: Path) -> None:
    kept = TINY.replace("FedPer: {keys: {method: fedper},", "FedPer: {keys: {method: fedper}, keeps: [clients],")
    cell = next(c for c in cells_of(item(room(tmp_path / "recipes", kept)), "cpu") if c.row == "FedPer")
    store = Store(tmp_path / "store")
    store.put(cell, stored(cell, 0.5, 0.5))
    assert store.current(cell) is None
    store.put(cell, stored(cell, 0.5, 0.5, kept={"clients": [0.5]}))
    assert store.current(cell) is not None
