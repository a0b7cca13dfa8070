"""How long missing cells take: by cells of the row, else of the setting, else by a calibration, never by a guess."""

import json
from pathlib import Path

import pytest
from tiny_paper import TINY, item, room, stored

from polyfed.papers.calibrate import IN_STORE, Calibration, this_machine
from polyfed.papers.cell import PaperCell, cells_of
from polyfed.papers.found import ItemFound
from polyfed.papers.left import Left, spoken
from polyfed.papers.page import results_page
from polyfed.papers.recipe import Item
from polyfed.papers.store import Store
from polyfed.papers.times import Times, _kin, parts_left
from polyfed.papers.verify import stored_files

Place = tuple[str, str, int]


def _cells(given: Item) -> dict[Place, PaperCell]:
    return {(cell.panel, cell.row, cell.seed): cell for cell in cells_of(given, "cpu")}


def _times(
    tmp_path: Path, given: Item, minutes: dict[Place, float], **others: str
) -> tuple[Times, dict[Place, PaperCell]]:
    """What a store tells in which these places are done; nothing is calibrated."""
    store, cells = Store(tmp_path / "results"), _cells(given)
    for place, took in minutes.items():
        store.put(cells[place], stored(cells[place], 0.5, 0.5, minutes=took, **others))
    found = ItemFound.of(given, "cpu", list(cells.values()), store)
    return Times.of([found], Calibration(tmp_path / "nothing.json")), cells


def test_the_same_row_tells_more_than_the_setting_and_another_setting_nothing(tmp_path: Path) -> None:
    given = item(room(tmp_path / "recipes"))
    times, cells = _times(tmp_path, given, {("alpha 1", "FedAvg", 0): 2.0, ("alpha 1", "FedPer", 0): 6.0})
    assert times.minutes(cells["alpha 1", "FedPer", 1]) == 6.0
    assert times.minutes(cells["alpha 1", "FedAvg, tuned", 1]) == 4.0
    assert times.minutes(cells["alpha 9", "FedAvg", 0]) is None
    left = times.left(cells.values())
    assert left == Left(10, 6, 2 * (2.0 + 6.0 + 4.0))
    assert left.in_words(" of one core") == "24 minutes of one core for 6 of 10 cells"


def test_another_table_with_the_same_experiment_tells(tmp_path: Path) -> None:
    recipes = room(tmp_path / "recipes", TINY.replace("    rounds: 3\n", "    rounds: 3\n    split.alpha: 1.0\n"))
    times, _ = _times(tmp_path, item(recipes), {("alpha 1", "FedAvg", 0): 3.0})
    assert times.minutes(cells_of(item(recipes, "table2"), "cpu")[1]) == 3.0


def test_a_stale_cell_tells_where_its_experiment_is_still_todays(tmp_path: Path) -> None:
    given = item(room(tmp_path / "recipes"))
    times, cells = _times(tmp_path / "a", given, {("alpha 1", "FedAvg", 0): 2.0}, sources="0" * 16)
    assert times.minutes(cells["alpha 1", "FedAvg", 0]) == 2.0
    times, cells = _times(tmp_path / "b", given, {("alpha 1", "FedAvg", 0): 2.0}, identity="0" * 16)
    assert times.minutes(cells["alpha 1", "FedAvg", 0]) is None


PACED = """
figure2:
  title: "Accuracy by round"
  place: "Figure 2"
  demo: progress
  keys:
    experiment:
      data: {name: digits, limit: 12}
      model: {name: mlp, width: 0.05}
      split: {clients: 4}
      participation: 0.5
      rounds: 4
      eval: {every: 2}
  scales: {cpu: {seeds: 1}}
  panels:
    "digits: FedAvg": {keys: {experiment.method: {name: fedavg}}}
    "digits: FedAvg+local": {keys: {experiment.method: {name: fedavg-ft, epochs: 1}}}
"""


def test_a_demo_is_told_by_its_own_cells_then_by_another_method_then_by_what_it_trains(tmp_path: Path) -> None:
    """After full personalisation at every second round, when half of all take part in one, a run is twice as long."""
    figure = item(room(tmp_path / "recipes", TINY + PACED), "figure2")
    plain, tuned = cells_of(figure, "cpu")
    calibration = Calibration(tmp_path / "times.json")
    alone = calibration.minutes(plain, measure=True)
    assert alone
    assert calibration.minutes(tuned) == pytest.approx(2 * alone)
    times, _ = _times(tmp_path, figure, {("digits: FedAvg", "demo", 0): 5.0})
    assert times.minutes(plain) == 5.0
    assert times.minutes(tuned) == 5.0
    assert Times(Calibration(tmp_path / "nothing.json")).minutes(tuned) is None


def test_a_demo_that_trains_nothing_takes_no_time(tmp_path: Path) -> None:
    figure = item(room(tmp_path / "recipes"), "figure1")
    times, cells = _times(tmp_path, figure, {("IF 10", "demo", 0): 5.0})
    assert (times.minutes(cells["IF 10", "demo", 0]), times.minutes(cells["IF 100", "demo", 0])) == (5.0, 0.0)


def test_a_page_takes_times_from_the_store_and_never_from_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipes = room(tmp_path / "recipes")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cell = _cells(item(recipes))["alpha 1", "FedAvg", 0]
    assert Calibration.here().minutes(cell, measure=True)
    store = Store(tmp_path / "results")
    assert "| Table 1 | cpu | 10 | – |" in results_page(store, recipes)
    measured = results_page(store, recipes, measure=True)
    assert "| Table 1 | cpu | 10 | a minute |" in measured
    assert f"timed steps on {this_machine()['cpu']}: " in measured
    assert results_page(store, recipes) == measured
    monkeypatch.setattr("polyfed.papers.calibrate.this_machine", lambda: {"cpu": "another", "torch": "0"})
    assert results_page(store, recipes) == measured
    assert Calibration.here().minutes(cell) is None


def test_a_calibration_in_a_store_is_no_cell_of_it(tmp_path: Path) -> None:
    given = item(room(tmp_path / "recipes"))
    _times(tmp_path, given, {("alpha 1", "FedAvg", 0): 2.0})
    (tmp_path / "results" / IN_STORE).write_text(json.dumps({"machine": {}, "known": {}}))
    root, files = stored_files(tmp_path / "results")
    assert root == tmp_path / "results"
    assert [file.name for file in files] == ["fedavg-s0.json"]


NAMES = ("A, one", "A, two", "B, one", "B, two")
LONG = dict(zip(NAMES, (1.0, 2.0, 30.0, 200.0), strict=True))


def _four(tmp_path: Path, panels: tuple[str, ...] = NAMES) -> list[PaperCell]:
    """A cell in each of four panels of two data sets."""
    given = item(room(tmp_path / "recipes"), "table2")
    named = {name: {"keys": {"split.alpha": place + 1.0}} for place, name in enumerate(panels)}
    return cells_of(Item.model_validate({**given.model_dump(), "panels": named}), "cpu", seeds=1)


def _told(cells: list[PaperCell], minutes: dict[str, float], tmp_path: Path) -> list[tuple[str, int, float]]:
    times = Times(Calibration(tmp_path / "nothing.json"))
    times.taken = {key: [minutes[c.panel]] for c in cells if c.panel in minutes for key in _kin(c)}
    return [(part.only, part.cells, part.minutes) for part in parts_left(cells, times)]


def test_one_sum_is_told_unless_it_hides_that_parts_differ_greatly(tmp_path: Path) -> None:
    cells = _four(tmp_path)
    assert _told(cells, dict.fromkeys(NAMES, 5.0), tmp_path) == [("", 4, 20.0)]
    assert _told(cells, LONG, tmp_path) == [("A,", 2, 3.0), ("B, one", 1, 30.0), ("B, two", 1, 200.0)]
    assert _told(cells, {"A, one": 90.0, "A, two": 90.0}, tmp_path) == [("A,", 2, 180.0), ("B,", 2, 0.0)]
    assert _told(cells, {"A, one": 1.0, "A, two": 9.0}, tmp_path) == [("", 4, 10.0)]  # no matter: it is soon done
    assert _told(cells, {}, tmp_path) == [("", 4, 0.0)]
    assert _told([], {}, tmp_path) == []


def test_parts_that_a_command_could_not_tell_apart_stay_together(tmp_path: Path) -> None:
    cells = _four(tmp_path, ("IF 1", "IF 10"))
    assert _told(cells, {"IF 1": 1.0, "IF 10": 299.0}, tmp_path) == [("", 2, 300.0)]


@pytest.mark.parametrize(
    ("minutes", "words"), [(0.2, "a minute"), (48.4, "48 minutes"), (119, "119 minutes"), (192, "3.2 hours")]
)
def test_minutes_in_words(minutes: float, words: str) -> None:
    assert spoken(minutes) == words


def test_what_nothing_tells_is_a_dash() -> None:
    assert Left(3, 0, 0.0).in_words() == "–"
