"""Every kind of figure against numbers written by hand; without data there is no figure."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from hand_made import measured, of_classes, of_clients, spent, write_run

from polyfed.errors import DataError, UsageError
from polyfed.report.charts import Bars, Chart, Dots, Histogram, Line, Strip, Tiles
from polyfed.report.kinds import KINDS, charts, draw
from polyfed.report.kinds.clusters import memberships
from polyfed.report.kinds.holdings import split_chart
from polyfed.report.runs import read, select

AFTER = "personal_final"
Make = Callable[..., Path]
SPREAD = math.sqrt(2) * 0.1  # of two values 0.2 apart


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A run in a directory named after its method and seed."""
    return lambda method="fedavg", seed=0, **more: write_run(tmp_path / f"{method}-{seed}", method, seed, **more)


def drawn(kind: str, *paths: Path, baseline: str | None = None) -> Chart:
    chart = draw(kind, select(paths, baseline))
    assert chart.kind == kind
    return chart


def marks(chart: Chart, panel: int = 0) -> Any:
    return chart.panels[panel].marks


class TestCurves:
    def test_mean_and_spread_over_seeds(self, make: Make) -> None:
        runs = [make(seed=s, rounds=measured("global", 0.2 + 0.2 * s, 0.6)) for s in (0, 1)]
        (line,) = marks(drawn("rounds", *runs))
        assert (line.series, line.x, line.seeds, line.finish) == ("fedavg", [1, 2], [2, 2], "before")
        assert line.y == pytest.approx([0.3, 0.6])
        assert line.spread == pytest.approx([SPREAD, 0])

    def test_each_measure_has_its_panel_and_its_name(self, make: Make) -> None:
        names = ("global", "personal", "global_local", "personal_selected")
        run = make(rounds=[row for name in names for row in measured(name, 0.5)])
        titles = [panel.title for panel in drawn("rounds", run).panels]
        assert [word for title in titles for word in ("GA)", "PA_all)", "GA_local)", "PA_sel)") if word in title] == [
            "GA)",
            "PA_all)",
            "GA_local)",
            "PA_sel)",
        ]

    def test_after_finish_is_a_point_of_its_own(self, make: Make) -> None:
        run = make(rounds=[*measured("personal", 0.4, 0.5), *measured(AFTER, 0.9, start=3)])
        before, after = marks(drawn("rounds", run))
        assert (before.y, before.finish) == ([0.4, 0.5], "before")
        assert (after.x, after.y, after.finish) == ([3], [0.9], "after")

    def test_stars_stand_side_by_side_at_finish(self, make: Make, tmp_path: Path) -> None:
        """However many rounds a run had; in the data, finish is one place."""
        rows = [*measured("personal", 0.4, 0.5), *measured(AFTER, 0.9, start=3)]
        longer = [*measured("personal", 0.3, 0.3, 0.3), *measured(AFTER, 0.8, start=4)]
        two = write_run(tmp_path / "b", "local", keys={"rounds": 3}, rounds=longer)
        chart = drawn("rounds", make(rounds=rows), two)
        first, second = (mark for mark in marks(chart) if mark.finish == "after")
        assert first.x[0] < 4.0 < second.x[0]
        assert second.x[0] - first.x[0] == pytest.approx(0.048)
        assert chart.panels[0].x.finish == 4.0
        table = chart.frame()
        assert set(table[table["finish"] == "after"]["round"]) == {4.0}
        assert chart.panels[0].x.ticks(4.0) == ([0, 1, 2, 3, 4], ["0", "1", "2", "3", "finish"])

    def test_without_stars_rounds_are_all_there_is(self, make: Make) -> None:
        assert drawn("rounds", make(rounds=measured("global", 0.1, 0.2))).panels[0].x.finish is None

    def test_a_line_that_hides_another_has_gaps(self, make: Make) -> None:
        runs = [
            make("fedavg", rounds=measured("personal", 0.4, 0.5)),
            make("fedbn", rounds=measured("personal", 0.4, 0.502)),
            make("local", rounds=measured("personal", 0.4, 0.51)),
        ]
        chart = drawn("rounds", *runs)
        assert {mark.series: mark.on for mark in marks(chart)} == {"fedavg": "", "fedbn": "fedavg", "local": ""}
        assert chart.panels[0].note == "fedbn (with gaps) lies on fedavg"

    def test_a_seed_that_stopped_early_counts_where_it_was(self, make: Make) -> None:
        runs = [
            make(seed=0, rounds=measured("global", 0.2, 0.4)),
            make(seed=1, rounds=measured("global", 0.4), finished=False),
        ]
        (line,) = marks(drawn("rounds", *runs))
        assert line.series == "fedavg (unfinished)"
        assert line.seeds == [2, 1]
        assert line.y == pytest.approx([0.3, 0.4])

    def test_bytes_up_and_down_without_evaluation(self, make: Make) -> None:
        runs = [
            make(seed=s, rounds=measured("global", 0.1, 0.2), spent=spent((1, 1, 1000 * (s + 1)), (2, 2, 4000)))
            for s in (0, 1)
        ]
        (line,) = marks(drawn("bytes", *runs))
        assert line.x == [1500, 4000]

    def test_seconds_of_training_and_merging(self, make: Make) -> None:
        run = make(rounds=measured("global", 0.1, 0.2), spent=spent((1, 3.0, 1), (2, 6.0, 1)))
        (line,) = marks(drawn("seconds", run))
        assert line.x == pytest.approx([3.0, 6.0])

    def test_a_round_whose_cost_is_not_known_is_left_out(self, make: Make) -> None:
        run = make(rounds=measured("global", 0.1, 0.2), spent=spent((2, 6.0, 8)))
        (line,) = marks(drawn("bytes", run))
        assert (line.x, line.y) == ([8], [0.2])

    def test_one_colour_for_a_method_everywhere(self, make: Make) -> None:
        runs = [
            make("fedper", rounds=measured("personal", 0.5)),
            make("fedavg", rounds=[*measured("global", 0.5), *measured("personal", 0.5)]),
        ]
        chart = drawn("rounds", *runs)
        assert chart.legend() == {"fedper": 0, "fedavg": 1}
        assert [(m.series, m.tint) for m in marks(chart, 0)] == [("fedavg", 1)]

    def test_settings_have_panels_of_their_own(self, make: Make, tmp_path: Path) -> None:
        one = make(rounds=measured("global", 0.1))
        two = write_run(tmp_path / "b", keys={"split": {"clients": 9}}, rounds=measured("global", 0.2))
        chart = drawn("rounds", one, two)
        assert [panel.title.split(" · ")[1] for panel in chart.panels] == ["split.clients = 2", "split.clients = 9"]
        assert [marks(chart, i)[0].y for i in (0, 1)] == [[0.1], [0.2]]


class TestHoldings:
    def test_bubbles(self, make: Make) -> None:
        (dots,) = marks(drawn("holdings", make()))
        held = {(x, y): n for x, y, n in zip(dots.x, dots.y, dots.sizes, strict=True)}
        assert held == {(0, 0): 6, (0, 2): 1, (1, 0): 4, (1, 1): 3}
        assert dots.names[1] == "14 % of what clinic holds"

    def test_names_in_the_table(self, make: Make) -> None:
        frame = drawn("holdings", make()).frame()
        assert frame[["client", "class", "samples"]].values.tolist()[-1] == ["<b>lab</b>", "dog", 3]

    def test_long_tail(self, make: Make) -> None:
        chart = drawn("tail", make())
        assert {m.series: (m.x, m.y) for m in marks(chart)} == {
            "head": ([0], [10]),
            "mid": ([1], [3]),
            "tail": ([2], [1]),
        }
        assert chart.panels[0].x.names == ["cat", "dog", "owl"]
        assert chart.panels[0].note == "imbalance factor 10"

    def test_the_smallest_seed_stands_for_all(self, make: Make) -> None:
        assert drawn("holdings", make(seed=4), make(seed=2)).panels[0].title == "seed 2 (one of 2)"

    def test_who_does_not_tell_is_not_drawn(self, make: Make) -> None:
        path = make()
        text = (path / "federation.json").read_text().replace("[4, 3, 0]", "null")
        (path / "federation.json").write_text(text)
        with pytest.raises(DataError, match="nothing for the figure 'holdings'"):
            drawn("holdings", path)

    def test_of_a_split(self) -> None:
        clients = [{"id": 0, "name": "a", "counts": [2, 0]}, {"id": 1, "name": "b", "counts": [0, 5]}]
        (dots,) = marks(split_chart({"classes": 2, "clients": clients}))
        assert list(zip(dots.x, dots.y, dots.sizes, strict=True)) == [(0, 0, 2), (1, 1, 5)]

    def test_of_masks_pixels_are_counted(self, make: Make) -> None:
        path = make()
        federation = json.loads((path / "federation.json").read_text())
        (path / "federation.json").write_text(json.dumps({**federation, "colours": [[1, 2, 3]] * 3}))
        (panel,) = drawn("holdings", path).panels
        assert panel.note == "the largest bubble: 6 pixels"
        assert drawn("tail", path).panels[0].y.label == "training pixels"
        split = split_chart({**federation, "colours": [[1, 2, 3]] * 3})
        assert split.panels[0].title == "training pixels by client and class"
        assert split.panels[0].y.names == ["cat", "dog", "owl"]


class TestClasses:
    def test_recall_by_class_in_the_last_round(self, make: Make) -> None:
        runs = [
            make(
                seed=s,
                classes=[*of_classes("global", 1, 0, 0, 0), *of_classes("global", 2, 0.5 + 0.2 * s, 0.25, None)],
            )
            for s in (0, 1)
        ]
        (bars,) = marks(drawn("classes", *runs))
        assert bars.x == [0, 1]  # nobody measured the third
        assert bars.y == pytest.approx([0.6, 0.25])
        assert bars.spread == pytest.approx([SPREAD, 0])

    def test_masks_have_iou_by_class(self, make: Make) -> None:
        path = make(classes=of_classes("global", 2, 0.5, 0.25, 1.0))
        table = pandas.read_csv(path / "classes.csv")
        table.assign(iou=table["recall"] / 2).to_csv(path / "classes.csv", index=False)
        chart = drawn("classes", path)
        assert (chart.title, chart.panels[0].y.label) == ("IoU by class", "IoU")
        assert marks(chart)[0].y == pytest.approx([0.25, 0.125, 0.5])

    def test_classes_come_by_their_training_samples(self, make: Make) -> None:
        path = make(classes=of_classes(AFTER, 3, 0.1, 0.2, 0.3))
        text = (path / "federation.json").read_text().replace("[6, 0, 1]", "[0, 0, 9]")
        (path / "federation.json").write_text(text)  # totals 4, 3, 9
        chart = drawn("classes", path)
        assert chart.panels[0].x.names == ["owl", "cat", "dog"]
        assert marks(chart)[0].y == pytest.approx([0.3, 0.1, 0.2])

    def test_without_the_federation_by_number(self, make: Make) -> None:
        chart = drawn("classes", make(federation=False, classes=of_classes("global", 2, 0.1, 0.2)))
        assert chart.panels[0].x.names == ["0", "1"]
        assert chart.panels[0].x.label == "class"

    def test_many_classes_are_a_line(self, make: Make) -> None:
        rows = of_classes("global", 2, *np.linspace(0, 1, 30).tolist())
        (line,) = marks(drawn("classes", make(federation=False, classes=rows)))
        assert isinstance(line, Line)
        assert line.y == pytest.approx(np.linspace(0, 1, 30).tolist())

    def test_groups_before_and_after(self, make: Make) -> None:
        rows = [
            *measured("global", 0.5, head=0.9, mid=0.6, tail=0.0),
            *measured(AFTER, 0.5, start=3, head=1.0, mid=0.7),  # no sample of the tail
        ]
        chart = drawn("groups", make(rounds=rows))
        assert [panel.title.rpartition("(")[2] for panel in chart.panels] == ["GA)", "PA_all)"]
        assert "after finish" in chart.panels[1].title
        assert marks(chart, 0)[0].y == [0.9, 0.6, 0.0]
        assert (marks(chart, 1)[0].x, marks(chart, 1)[0].y) == ([0, 1], [1.0, 0.7])

    def test_a_run_that_goes_on_shows_what_it_has(self, make: Make) -> None:
        rows = measured("personal", 0.5, head=0.9, mid=0.6, tail=0.1)
        chart = drawn("groups", make(rounds=rows, finished=False))
        assert "before finish" in chart.panels[0].title
        assert marks(chart)[0].series == "fedavg (unfinished)"


class TestClients:
    def test_everybody_with_the_worst_and_the_best(self, make: Make) -> None:
        runs = [
            make("fedavg", clients=of_clients(AFTER, 3, 0.25, 0.75)),
            make("fedper", clients=of_clients(AFTER, 3, 0.5, None)),
        ]
        chart = drawn("clients", *runs)
        below, above = marks(chart)
        assert chart.panels[0].y.names == ["fedper", "fedavg"]
        assert (above.series, above.at, above.values) == ("fedavg", 1, [0.25, 0.75])
        assert above.extremes() == [(0, "clinic"), (1, "<b>lab</b>")]
        assert above.quartiles == (0.375, 0.5, 0.625)
        assert below.values == [0.5]

    def test_seeds_are_named_where_there_are_several(self, make: Make) -> None:
        runs = [make(seed=s, clients=of_clients(AFTER, 3, 0.5, 0.5)) for s in (0, 1)]
        (strip,) = marks(drawn("clients", *runs))
        assert strip.names == ["clinic (seed 0)", "<b>lab</b> (seed 0)", "clinic (seed 1)", "<b>lab</b> (seed 1)"]
        assert strip.extremes()[0] == (0, "clinic (seed 0) and 3 more")

    def test_change_is_paired_by_seed_and_client(self, make: Make) -> None:
        runs = [
            make("fedavg", 0, clients=of_clients(AFTER, 3, 0.5, 0.5)),
            make("fedavg", 1, clients=of_clients(AFTER, 3, 0.1, 0.2)),
            make("map", 0, clients=of_clients(AFTER, 3, 0.75, 0.5)),
            make("map", 1, clients=of_clients(AFTER, 3, 0.0, None)),
            make("map", 2, clients=of_clients(AFTER, 3, 1.0, 1.0)),  # nobody to set it against
        ]
        chart = drawn("change", *runs)
        (bars,) = marks(chart)
        assert isinstance(bars, Histogram)
        assert bars.values == pytest.approx([0.25, 0.0, -0.1])
        assert bars.names == ["clinic (seed 0)", "<b>lab</b> (seed 0)", "clinic (seed 1)"]
        assert chart.panels[0].note == "1 of 3 clients better, 1 worse, 1 the same"
        assert sum(bars.counts) == 3
        zero = next(i for i, edge in enumerate(bars.edges) if edge > 0) - 1
        assert bars.counts[zero] == 1  # the bin around no change holds who did not change

    def test_another_baseline(self, make: Make) -> None:
        runs = [make(name, clients=of_clients(AFTER, 3, value, value)) for name, value in (("fedavg", 0.5), ("map", 1))]
        chart = drawn("change", *runs, baseline="map")
        assert chart.panels[0].title == "fedavg − map"
        assert marks(chart)[0].values == [-0.5, -0.5]

    def test_global_against_personal(self, make: Make) -> None:
        def rows(overall: float, personal: float) -> Any:
            return [*measured("global", 0.0, overall), *measured(AFTER, personal, start=3)]

        runs = [
            make("fedavg", 0, rounds=rows(0.4, 0.6)),
            make("fedavg", 1, rounds=rows(0.6, 0.6)),
            make("map", 0, rounds=rows(0.3, 0.9)),
            make("fedper", 0, rounds=measured(AFTER, 0.9, start=3)),
        ]
        first, second = marks(drawn("scatter", *runs))
        assert (first.series, first.x, first.y) == ("fedavg", [0.5], [0.6])
        assert [s for each in first.spread for s in each] == pytest.approx([SPREAD, 0.0])
        assert (second.series, second.x, second.y) == ("map", [0.3], [0.9])

    def test_one_method_is_no_scatter(self, make: Make) -> None:
        run = make(rounds=[*measured("global", 0.5), *measured(AFTER, 0.5, start=3)])
        with pytest.raises(DataError, match="two methods with a global model"):
            drawn("scatter", run)


class TestClusters:
    def test_clusters_keep_their_numbers(self, make: Make) -> None:
        arrays = {
            "clusters-000001": [[0, 5], [1, 5], [2, 3], [3, 5]],
            "clusters-000002": [[0, 0], [1, 0], [2, 1], [3, 0]],  # the same groups under other numbers
            "clusters-000003": [[0, 1], [2, 0]],  # 1 and 3 were not there
            "clusters-000004": [[0, 2], [1, 1], [2, 0], [3, 2]],  # 1 leaves 0 and 3
        }
        found = memberships(read(make("mupfl", arrays=arrays)))
        assert found[1] == found[2] == {0: 1, 1: 1, 2: 0, 3: 1}
        assert found[3] == {0: 1, 2: 0}
        assert found[4] == {0: 1, 1: 2, 2: 0, 3: 1}

    def test_a_list_by_client_means_the_same(self, make: Make) -> None:
        found = memberships(read(make("distfl", arrays={"clusters-000001": [2, 2, 7]})))
        assert found == {1: {0: 0, 1: 0, 2: 1}}

    def test_tiles(self, make: Make) -> None:
        arrays = {"clusters-000001": [[0, 0], [1, 1]], "clusters-000002": [[1, 1]]}
        chart = drawn("clusters", make("mupfl", arrays=arrays))
        (tiles,) = marks(chart)
        assert isinstance(tiles, Tiles)
        assert tiles.groups
        np.testing.assert_array_equal(tiles.values, [[0, np.nan], [1, 1]])
        assert chart.panels[0].x.names == ["1", "2"]
        assert chart.panels[0].y.names == ["clinic", "<b>lab</b>"]
        assert chart.frame()["cluster"].tolist() == [0, 1, 1]

    def test_similarity_of_the_last_round(self, make: Make) -> None:
        arrays = {"similarity-000002": [[0, 9], [9, 0]], "similarity-000004": [[0, 0.5], [0.5, 0]]}
        arrays |= {f"similarity_clients-00000{n}": [1, 0] for n in (2, 4)}
        chart = drawn("similarity", make("distfl", arrays=arrays))
        assert chart.panels[0].title == "distfl, seed 0, round 4"
        assert chart.panels[0].x.names == ["<b>lab</b>", "clinic"]
        assert chart.frame()["divergence"].tolist() == [0, 0.5, 0.5, 0]

    def test_parameters_by_cluster(self, make: Make) -> None:
        arrays = {
            "plane-000002": [[0, 1.5, -2.0], [1, 0.5, 4.0]],
            "plane_shares-000002": [0.75, 0.2],
            "clusters-000002": [[0, 0], [1, 1]],
            "silhouette-000002": [[2, 0.31], [3, 0.1]],
        }
        chart = drawn("parameters", make("mupfl", arrays=arrays))
        found = {m.series: (m.tint, m.x, m.y, m.names) for m in marks(chart)}
        assert found == {"cluster 0": (0, [1.5], [-2.0], ["clinic"]), "cluster 1": (1, [0.5], [4.0], ["<b>lab</b>"])}
        assert chart.panels[0].note == "silhouette 0.31"
        assert chart.panels[0].x.label == "PC 1 (75 % of the variance)"

    def test_the_first_seed_stands_for_all(self, make: Make) -> None:
        runs = [make("mupfl", seed, arrays={"clusters-000001": [[0, 0]]}) for seed in (3, 1)]
        assert [panel.title for panel in drawn("clusters", *runs).panels] == ["mupfl, seed 1 (one of 2)"]


class TestUploads:
    def test_who_when_and_why(self, make: Make) -> None:
        rows = [
            {"round": 1, "client": 0, "status": "accepted"},
            {"round": 1, "client": 1, "status": "rejected", "reason": "not finite"},
            {"round": 2, "client": 0, "status": "failed", "reason": "deadline"},
            {"round": 2, "client": 1, "status": "failed", "reason": "ValueError: <no>"},
        ]
        chart = drawn("uploads", make(training=rows))
        found = {m.series: (m.x, m.y, m.names) for m in marks(chart)}
        assert found == {
            "rejected: not finite": ([1], [1], ["<b>lab</b>: not finite"]),
            "failed: deadline": ([2], [0], ["clinic: deadline"]),
            "failed: exception": ([2], [1], ["<b>lab</b>: ValueError: <no>"]),
        }
        assert chart.panels[0].note.startswith("3 of 4 uploads did not count (1 rejected: not finite, 1 failed")

    def test_methods_that_lost_nothing_are_absent(self, make: Make) -> None:
        lost = [{"round": 1, "client": 0, "status": "failed", "reason": "dropout"}]
        runs = [make("fedavg", training=lost), make("map", training=[{**lost[0], "status": "accepted"}])]
        assert [panel.title for panel in drawn("uploads", *runs).panels] == ["fedavg"]


class TestThreats:
    def test_accuracy_and_success_by_round(self, make: Make) -> None:
        runs = [make(seed=s, threats=[{"round": 1}, {"round": 2, "acc": 0.4 + 0.2 * s, "asr": 0.1}]) for s in (0, 1)]
        chart = drawn("attack", *runs)
        assert [panel.title[-5:] for panel in chart.panels] == ["(ACC)", "(ASR)"]
        (acc,), (asr,) = marks(chart), marks(chart, 1)
        assert (acc.x, acc.seeds, asr.y) == ([2], [2], [0.1])
        assert (*acc.y, *acc.spread) == pytest.approx((0.5, SPREAD))

    def test_weights_by_client_and_round_with_attackers_marked(self, make: Make) -> None:
        rows = [
            {"round": 1, "client": 0, "status": "accepted", "attacker": 0, "weight": 0.75},
            {"round": 1, "client": 1, "status": "accepted", "attacker": 0, "weight": 0.25},
            {"round": 2, "client": 0, "status": "accepted", "attacker": 0, "weight": 1},
            {"round": 2, "client": 1, "status": "rejected", "attacker": 1},
        ]
        (panel,) = drawn("weights", make(training=rows)).panels
        assert (panel.x.names, panel.y.names) == (["1", "2"], ["<b>lab</b> (attacker)", "clinic"])
        np.testing.assert_array_equal(panel.marks[0].values, [[0.25, np.nan], [0.75, 1]])

    def test_a_defence_without_an_attack_has_no_figure(self, make: Make) -> None:
        rows = [{"round": 1, "client": 0, "status": "accepted", "attacker": 0, "weight": 1}]
        run = make(training=rows, threats=[{"round": 1, "attackers": 0}])
        for kind in ("attack", "weights"):
            with pytest.raises(DataError, match="it needs"):
                drawn(kind, run)


@pytest.mark.parametrize("kind", KINDS)
def test_without_data_there_is_no_figure(make: Make, kind: str) -> None:
    with pytest.raises(DataError, match=f"nothing for the figure '{kind}': it needs"):
        drawn(kind, make(federation=False, finished=False))


def test_charts_are_those_with_data(make: Make) -> None:
    found = charts(select([make(rounds=measured("global", 0.5, head=1.0))]))
    assert [chart.kind for chart in found] == ["rounds", "holdings", "tail", "groups"]


def test_an_unknown_kind_names_the_nearest(make: Make) -> None:
    with pytest.raises(UsageError, match="no figure 'roundz'; did you mean 'rounds'"):
        drawn("roundz", make())


def test_kinds_of_marks_are_all_met(make: Make) -> None:
    """The tests of drawing use every mark; this says which figure has it."""
    used = {"rounds": Line, "groups": Bars, "holdings": Dots, "clients": Strip, "change": Histogram, "clusters": Tiles}
    runs = [
        make(
            name,
            rounds=measured("global", 0.5, head=1.0),
            clients=of_clients(AFTER, 3, 0.5, 0.5),
            arrays={"clusters-000001": [[0, 0]]},
        )
        for name in ("fedavg", "mupfl")
    ]
    assert all(isinstance(marks(drawn(kind, *runs))[0], mark) for kind, mark in used.items())
