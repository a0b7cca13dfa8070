"""The cores, divided between cells and workers: by what is asked, by what is measured, by what cannot be."""

from typing import Any

import pytest

from polyfed.api import config_of
from polyfed.comparison import jobs as room
from polyfed.comparison.grid import make_grid
from polyfed.comparison.jobs import Division, divide, one_by_one, read_jobs
from polyfed.config import Config
from polyfed.errors import UsageError

Keys = dict[str, Any]


def configs(count: int = 8, **keys: Any) -> list[Config]:
    return [config_of({"engine.workers": None, **keys}, seed=seed) for seed in range(count)]


@pytest.fixture(autouse=True)
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of eight cores."""
    monkeypatch.setattr(room, "cores", lambda: 8)


@pytest.mark.parametrize("given", [0, -1, 1025, True, 1.5, "many", None, [2]])
def test_jobs_is_a_number_or_auto(given: Any) -> None:
    with pytest.raises(UsageError, match="jobs must be auto or a number of cells"):
        read_jobs(given)


@pytest.mark.parametrize("given", [1, 1024, "auto"])
def test_what_jobs_may_be(given: Any) -> None:
    assert read_jobs(given) == given


@pytest.mark.parametrize(
    ("cores", "cells", "busy", "at_once"),
    [
        (2, 8, 0.6, 2),  # a small federation: the server takes much of the time
        (2, 8, 0.97, 1),  # workers that are always busy gain nothing
        (2, 1, 0.1, 1),
        (8, 3, 0.5, 3),  # never more than there are
        (8, 100, 0.5, 8),
        (8, 9, 0.0, 5),  # nine in two goes of five, not in two of eight
        (1, 8, 0.5, 1),
    ],
)
def test_so_many_at_once_that_all_are_over_soonest(cores: int, cells: int, busy: float, at_once: int) -> None:
    assert divide(cores, cells, busy) == at_once


class TestDivision:
    def test_a_number_is_a_number(self) -> None:
        division = Division(4, configs())
        assert division.at_once == 4
        assert division.workers(configs(1)[0], [], 8) == 2
        assert division.workers(configs(1)[0], [2, 2, 2], 5) == 2

    def test_one_worker_is_no_worker(self) -> None:
        """A cell that has one core works in its own process."""
        assert Division(8, configs()).workers(configs(1)[0], [0] * 3, 5) == 0

    def test_the_last_cells_get_what_is_free(self) -> None:
        division = Division(8, configs())
        assert division.workers(configs(1)[0], [], 2) == 4
        assert division.workers(configs(1)[0], [4], 1) == 4

    def test_the_first_cell_shows_it(self) -> None:
        division = Division("auto", configs())
        assert division.at_once is None
        assert division.workers(configs(1)[0], [], 8) == 8
        said = division.measured(0.5, 8)
        assert division.at_once == 8
        assert said == "jobs=auto: the workers of the first cell were at work in 50% of the time, so 8 cells at once"
        assert division.workers(configs(1)[0], [8], 7) == 0

    def test_workers_that_are_named_are_kept(self) -> None:
        named = configs(**{"engine.workers": 3})
        assert Division("auto", named).at_once == 2
        assert Division("auto", named).workers(named[0], [], 8) == 3
        assert Division("auto", configs(**{"engine.workers": 0})).at_once == 8

    def test_nothing_to_divide(self) -> None:
        assert Division(8, configs(1)).at_once == 1
        assert Division("auto", []).at_once == 1

    @pytest.mark.parametrize(
        ("keys", "why"),
        [
            ({"engine.server_threads": 2}, "engine.server_threads gives a cell several cores already"),
            ({"engine.deadline": 5.0}, "on a crowded machine clients would miss engine.deadline"),
        ],
    )
    def test_what_runs_one_after_the_other(self, keys: Keys, why: str) -> None:
        assert one_by_one(configs(2, **keys), "auto") == why
        assert Division("auto", configs(2, **keys)).at_once == 1

    def test_a_deadline_is_the_users_affair_where_jobs_is_a_number(self) -> None:
        assert Division(2, configs(2, **{"engine.deadline": 5.0})).at_once == 2

    def test_where_nothing_forks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(room.multiprocessing, "get_all_start_methods", lambda: ["spawn"])
        assert Division(4, configs()).at_once == 1
        assert Division(4, configs()).obstacle == "this system cannot fork processes safely"


@pytest.mark.parametrize(("key", "value"), [("jobs", "some"), ("share", "yes"), ("share", 1)])
def test_wrong_keys_of_a_comparison(key: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"^{key} must be"):
        make_grid({"methods": ["fedavg"], key: value})


def test_who_does_the_work_is_no_part_of_a_comparison() -> None:
    plain = make_grid({"methods": ["fedavg"]})
    other = make_grid({"methods": ["fedavg"], "jobs": 3, "share": False})
    assert plain.same_as(other)
    assert (plain.jobs, plain.share, other.jobs, other.share) == ("auto", True, 3, False)
    assert [cell.name for cell in plain.cells] == [cell.name for cell in other.cells]
