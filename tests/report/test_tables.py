"""Tables from hand-made summaries: every form says the same, marks are computed by hand, what is missing stays so."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from polyfed.comparison.folder import Found
from polyfed.errors import UsageError
from polyfed.methods.base import methods
from polyfed.report.forms import Table
from polyfed.report.names import as_written
from polyfed.report.tables import (
    COLUMNS,
    caption,
    choose_columns,
    comparison_table,
    size,
    split_picture,
    split_text,
    threats_table,
    usual_columns,
)


def found(method: str, seed: int, overall: float | None, personal: float | None, **more: Any) -> Found:
    """As much of a result as a table needs."""
    numbers = {"accuracy": personal, "head": 0.9, "mid": 0.5, "tail": None, "worst10": 0.25}
    summary = {
        "global": None if overall is None else {"accuracy": overall},
        "personal": None if personal is None else numbers,
        "bytes": {"up": 1_000_000, "down": 500_000, "eval": 7},
        "seconds": {"total": 2.04},
    }
    return Found(method, seed, summary, **more)


@pytest.fixture
def table() -> Table:
    """Two methods, two seeds; fedper has no global model."""
    made = [found("fedavg", 0, 0.5, 0.6), found("fedper", 0, None, 0.75)]
    return comparison_table([*made, found("fedavg", 1, 0.7, 0.6), found("fedper", 1, None, 0.85)])


ROWS = [
    ["FedAvg", "60.0 ± 14.1", "60.0 ± 0.0", "90.0 ± 0.0", "50.0 ± 0.0", "–", "25.0 ± 0.0", "1.5 MB", "2.0"],
    ["FedPer", "–", "80.0 ± 7.1", "90.0 ± 0.0", "50.0 ± 0.0", "–", "25.0 ± 0.0", "1.5 MB", "2.0"],
]


class TestForms:
    def test_text(self, table: Table) -> None:
        assert table.rows == ROWS
        assert table.text() == (
            "method       global    personal        head         mid  tail  worst 10 %   bytes  seconds\n"
            "------  -----------  ----------  ----------  ----------  ----  ----------  ------  -------\n"
            "FedAvg  60.0 ± 14.1  60.0 ± 0.0  90.0 ± 0.0  50.0 ± 0.0     –  25.0 ± 0.0  1.5 MB      2.0\n"
            "FedPer            –  80.0 ± 7.1  90.0 ± 0.0  50.0 ± 0.0     –  25.0 ± 0.0  1.5 MB      2.0\n"
        )

    def test_a_terminal_shows_the_same_in_styles(self, table: Table) -> None:
        styled = table.styled()
        assert styled.plain == table.text() + "\nbold: best of the column, underlined: second best\n"
        assert [(styled.plain[s.start : s.end], s.style) for s in styled.spans] == [("80.0 ± 7.1", "bold")]

    def test_markdown(self, table: Table) -> None:
        assert table.markdown() == (
            "| method | global | personal | head | mid | tail | worst 10 % | bytes | seconds |\n"
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
            "| FedAvg | 60.0 ± 14.1 | 60.0 ± 0.0 | 90.0 ± 0.0 | 50.0 ± 0.0 | – | 25.0 ± 0.0 | 1.5 MB | 2.0 |\n"
            "| FedPer | – | **80.0 ± 7.1** | 90.0 ± 0.0 | 50.0 ± 0.0 | – | 25.0 ± 0.0 | 1.5 MB | 2.0 |\n"
            "\nbold: best of the column, underlined: second best\n"
        )

    def test_latex(self, table: Table) -> None:
        assert table.latex().splitlines() == [
            r"% in the preamble: \usepackage{booktabs}",
            r"\begin{tabular}{lrrrrrrrr}",
            r"\toprule",
            r"method & global & personal & head & mid & tail & worst 10 \% & bytes & seconds \\",
            r"\midrule",
            r"FedAvg & 60.0 $\pm$ 14.1 & 60.0 $\pm$ 0.0 & 90.0 $\pm$ 0.0 & 50.0 $\pm$ 0.0 & -- & 25.0 $\pm$ 0.0 "
            r"& 1.5 MB & 2.0 \\",
            r"FedPer & -- & \textbf{80.0 $\pm$ 7.1} & 90.0 $\pm$ 0.0 & 50.0 $\pm$ 0.0 & -- & 25.0 $\pm$ 0.0 "
            r"& 1.5 MB & 2.0 \\",
            r"\bottomrule",
            r"\end{tabular}",
            r"\par{\footnotesize bold: best of the column, underlined: second best}",
        ]

    def test_names_with_special_signs(self) -> None:
        table = comparison_table([found("my_file.py:A&B#1|{~^\\", 0, 0.5, 0.5)])
        escaped = r"my\_file.py:A\&B\#1|\{\textasciitilde{}\textasciicircum{}\textbackslash{} & 50.0"
        assert escaped in table.latex()
        assert r"A&B#1\|{~^" in table.markdown()

    def test_csv(self, table: Table) -> None:
        fedavg, fedper = csv.DictReader(io.StringIO(table.csv()))
        assert (fedavg["method"], fedavg["seeds"]) == ("fedavg", "2")
        assert float(fedavg["global mean"]) == pytest.approx(0.6)
        assert float(fedavg["global std"]) == pytest.approx(0.1414, abs=1e-4)
        assert fedper["global mean"] == fedper["global std"] == fedper["tail mean"] == ""
        assert float(fedper["bytes mean"]) == 1_500_000  # up and down, evaluation is not traffic of training
        assert list(fedavg) == [
            "method",
            "seeds",
            *(f"{column.name} {what}" for column in COLUMNS for what in ("mean", "std")),
        ]

    def test_nothing_found(self) -> None:
        table = comparison_table([], notes=["not finished: all"])
        assert table.text().splitlines()[0].startswith("method  global  personal")
        assert table.text().endswith("\nnot finished: all\n")
        assert table.csv() == "method\n"

    def test_one_seed_has_no_spread(self) -> None:
        table = comparison_table([found("fedavg", 0, 0.5, 0.6)])
        assert "50.0 " in table.text()
        assert "±" not in table.text()
        (row,) = csv.DictReader(io.StringIO(table.csv()))
        assert row["global std"] == ""

    def test_method_without_any_test(self) -> None:
        table = comparison_table([found("fedavg", 0, None, None)])
        assert table.rows == [["FedAvg", "–", "–", "–", "–", "–", "–", "1.5 MB", "2.0"]]

    def test_rows_come_in_the_order_of_the_methods(self) -> None:
        table = comparison_table([found(name, 0, 0.5, 0.6) for name in ("zeta", "alpha", "mid")])
        assert [row[0] for row in table.rows] == ["zeta", "alpha", "mid"]


class TestNames:
    def test_methods_are_written_as_in_their_papers_for_people_and_by_key_for_programs(self) -> None:
        labels = {
            "mupfl": "MuPFL",
            "fedcrc": "FedCRC",
            "map": "MAP",
            "ecl, base=scaffold": "ECL, base=scaffold",
            "distfl": "DistFL",
            "scaffold": "SCAFFOLD",
            "fedavg-ft": "FedAvg-FT",
            "pull.py:Pull": "pull.py:Pull",
            "my map": "my map",
        }
        table = comparison_table([found(label, 0, 0.5, 0.6) for label in labels])
        assert [row[0] for row in table.rows] == list(labels.values())
        assert all(f"\n{name} & 50.0" in table.latex() for name in labels.values())
        assert [row["method"] for row in csv.DictReader(io.StringIO(table.csv()))] == list(labels)

    @pytest.mark.parametrize(
        ("label", "written"),
        [
            ("fedper − fedavg", "FedPer − FedAvg"),
            ("map, seed 0 · split.alpha = 0.1", "MAP, seed 0 · split.alpha = 0.1"),
            ("map (unfinished)", "MAP (unfinished)"),
            ("local test", "local test"),
            ("", ""),
        ],
    )
    def test_labels_of_figures(self, label: str, written: str) -> None:
        assert as_written(label) == written

    def test_every_method_of_this_package_has_a_name_of_its_own(self) -> None:
        ours = [spec for spec in methods if spec.__module__.startswith("polyfed.")]
        written = [methods.as_written(spec.name) for spec in ours]
        assert len(set(written)) == len(written)
        assert methods.as_written("nobody.py:Nothing") == "nobody.py:Nothing"  # and no file is read


class TestColumns:
    def test_some_in_the_order_that_was_asked_for(self) -> None:
        one = found("fedavg", 0, 0.5, 0.6)
        table = comparison_table([one], columns=choose_columns(["worst-10", "global", "global-tail"]))
        assert table.head == ["method", "worst 10 %", "global", "global tail"]
        assert table.rows == [["FedAvg", "25.0", "50.0", "–"]]
        assert list(next(csv.DictReader(io.StringIO(table.csv()))))[:4] == [
            "method",
            "seeds",
            "worst 10 % mean",
            "worst 10 % std",
        ]

    def test_no_choice_is_the_usual_table(self) -> None:
        assert choose_columns(None) is None
        one = found("fedavg", 0, 0.5, 0.6)
        assert usual_columns([one]) is COLUMNS
        of_masks = replace(one, summary={**one.summary, "global": {"accuracy": 0.5, "balanced": 0.4, "miou": 0.25}})
        assert usual_columns([of_masks, one]) is COLUMNS, "both kinds have these in common"
        table = comparison_table([of_masks])
        assert dict(zip(table.head, table.rows[0], strict=True))["mIoU"] == "25.0"
        assert caption([of_masks.summary]).startswith("Labels are masks")

    @pytest.mark.parametrize(
        ("names", "sentence"),
        [
            (
                ["personal", "tial"],
                "there is no column 'tial'; there are global, personal, head, mid, tail, worst-10, ",
            ),
            ([], "a table needs a column; there are global, "),
            (["tail", "tail"], "the column 'tail' is given twice"),
        ],
    )
    def test_wrong_names(self, names: list[str], sentence: str) -> None:
        with pytest.raises(UsageError, match=re.escape(sentence)):
            choose_columns(names)


class TestKeysOfRows:
    def test_are_columns_where_rows_differ(self) -> None:
        own = [{"train.lr": lr, "model": "mlp", "rounds": 3} for lr in (0.1, 0.05)]
        table = comparison_table([found(name, 0, 0.5, 0.6, own=o) for name, o in zip("ab", own, strict=True)])
        assert table.head[:3] == ["method", "train.lr", "global"]
        assert [row[:2] for row in table.rows] == [["a", "0.1"], ["b", "0.05"]]
        assert table.latex().splitlines()[1] == r"\begin{tabular}{llrrrrrrrr}"
        assert [row["train.lr"] for row in csv.DictReader(io.StringIO(table.csv()))] == ["0.1", "0.05"]

    def test_stand_before_the_setting(self) -> None:
        runs = [
            found(name, 0, 0.5, 0.6, own={"rounds": rounds}, setting={"split.alpha": alpha})
            for alpha in (0.1, 1)
            for name, rounds in (("a", 2), ("b", 4))
        ]
        table = comparison_table(runs)
        assert table.head[:3] == ["method", "rounds", "split.alpha"]
        assert [row[:3] for row in table.rows] == [
            ["a", "2", "0.1"],
            ["b", "4", "0.1"],
            ["a", "2", "1"],
            ["b", "4", "1"],
        ]


def ranked(personal: Mapping[str, Sequence[float]]) -> dict[str, str]:
    """How methods rank by their personal accuracies over seeds."""
    runs = [found(name, s, None, value) for name, values in personal.items() for s, value in enumerate(values)]
    (group,) = comparison_table(runs).groups
    return {row[0].text: row[2].rank for row in group}


class TestRanks:
    def test_best_and_second(self) -> None:
        means = {"a": [0.5, 0.7], "b": [0.9, 0.9], "c": [0.8, 0.8], "d": [0.1, 0.1]}
        assert ranked(means) == {"a": "", "b": "bold", "c": "underline", "d": ""}

    def test_what_is_shown_alike_ranks_alike(self) -> None:
        assert ranked({"a": [0.9001], "b": [0.9], "c": [0.8], "d": [0.7]}) == {
            "a": "bold",
            "b": "bold",
            "c": "underline",
            "d": "",
        }

    def test_two_have_no_second(self) -> None:
        assert ranked({"a": [0.9], "b": [0.8]}) == {"a": "bold", "b": ""}

    def test_all_alike_have_no_best(self) -> None:
        assert ranked({"a": [0.9], "b": [0.9]}) == {"a": "", "b": ""}

    def test_who_lacks_a_seed_is_not_ranked(self) -> None:
        assert ranked({"a": [0.5, 0.5], "b": [0.9], "c": [0.4, 0.4]}) == {"a": "bold", "b": "", "c": ""}

    def test_bytes_and_seconds_are_not_ranked(self) -> None:
        (group,) = comparison_table([found(name, 0, None, 0.5) for name in "ab"]).groups
        assert all(entry.rank == "" for row in group for entry in row[-2:])


class TestSettings:
    def test_a_row_per_setting_ranked_by_itself(self) -> None:
        runs = [
            found(name, 0, None, value, setting={"split.alpha": alpha, "model": model})
            for alpha, model, name, value in (
                (0.1, "mlp", "a", 0.1), (0.1, "mlp", "b", 0.2), (1.0, {"name": "cnn", "width": 2}, "a", 0.9),
                (1.0, {"name": "cnn", "width": 2}, "b", 0.8),
            )
        ]  # fmt: skip
        table = comparison_table(runs)
        assert table.head[:3] == ["method", "split.alpha", "model"]
        assert [row[:3] for row in table.rows] == [
            ["a", "0.1", "mlp"],
            ["b", "0.1", "mlp"],
            ["a", "1.0", "cnn width=2"],
            ["b", "1.0", "cnn width=2"],
        ]
        ranks = [[row[0].text for row in group if row[4].rank == "bold"] for group in table.groups]
        assert ranks == [["b"], ["a"]]
        assert table.text().count("\n------") == 2
        assert table.latex().count(r"\midrule") == 2
        assert table.latex().splitlines()[1] == r"\begin{tabular}{lllrrrrrrrr}"
        assert "underlined: second best, each setting by itself" in table.markdown()
        assert next(csv.DictReader(io.StringIO(table.csv())))["split.alpha"] == "0.1"


def against(
    differences: Sequence[float], clients: Sequence[Sequence[float]] = (), overall: float | None = None
) -> Table:
    """A method and a baseline whose personal accuracies differ so by seed, and by client within a seed."""
    runs = []
    for seed, difference in enumerate(differences):
        here = clients[seed] if clients else ()
        ours = {k: 0.5 + d for k, d in enumerate(here)}
        theirs = dict.fromkeys(range(len(here)), 0.5)
        runs += [
            found("base", seed, overall, 0.5, clients=theirs),
            found("ours", seed, overall, 0.5 + difference, clients=ours),
        ]
    return comparison_table(runs, baseline="base")


def beside(table: Table) -> str:
    """What is said of our personal accuracy against the baseline's."""
    (group,) = table.groups
    assert group[0][2].beside == ""  # of the baseline itself nothing is
    return group[1][2].beside


class TestBaseline:
    # t = mean / (s / sqrt(5)): 0.03 / (0.0158 / 2.236) = 4.24 > 2.776, the two-sided 5 % point at 4 degrees of freedom
    CLEAR = (0.01, 0.02, 0.03, 0.04, 0.05)
    # 0.03 / (0.0762 / 2.236) = 0.88
    UNCLEAR = (-0.06, -0.01, 0.03, 0.06, 0.13)

    def test_significant_over_five_seeds(self) -> None:
        table = against(self.CLEAR)
        assert beside(table) == "(+3.0*)"
        assert any(line.startswith("*: p < 0.05 in a t-test paired by seed") for line in table.legend)
        assert float(list(csv.DictReader(io.StringIO(table.csv())))[1]["personal p"]) == pytest.approx(0.0132, abs=1e-4)

    def test_not_significant(self) -> None:
        assert beside(against(self.UNCLEAR)) == "(+3.0)"

    def test_worse(self) -> None:
        worse = against([-d for d in self.CLEAR])
        assert beside(worse) == "(−3.0*)"
        assert "($-$3.0$^{*}$)" in worse.latex()
        assert float(list(csv.DictReader(io.StringIO(worse.csv())))[1]["personal delta"]) == pytest.approx(-0.03)

    def test_four_seeds_are_too_few(self) -> None:
        table = against(self.CLEAR[:4])
        assert beside(table) == "(+2.5)"
        assert table.legend == ["(+x): difference to base, mean over seeds; tested from 5 seeds on"]

    def test_the_same_difference_everywhere(self) -> None:
        """No spread to divide by: no difference is none, a constant one is certain."""
        assert beside(against([0.0] * 5)) == "(+0.0)"
        assert beside(against([0.25] * 5)) == "(+25.0*)"

    def test_paired_by_client(self) -> None:
        """Six clients that all gain: p = 2 / 2**6 = 0.03. Five: 2 / 2**5 = 0.06. A seed in which all lose disagrees."""
        gain = [0.1, 0.2, 0.3, 0.15, 0.25, 0.35]
        few, lose = gain[:5], [-d for d in gain]
        table = against([0.02, 0.01, 0.03], [gain, few, lose])
        assert beside(table) == "(+2.0 †1/3)"
        assert "descriptive" in table.legend[-1]
        assert table.legend[-1].startswith("†k/n: in k of n seeds the clients differ as the mean does (Wilcoxon")
        assert beside(against([0.02, 0.01, 0.03], [gain, gain, gain])) == "(+2.0 †3/3)"
        assert beside(against([0.02, 0.01, 0.03], [few, few, lose])) == "(+2.0)"

    def test_in_every_form(self) -> None:
        gain = [0.1, 0.2, 0.3, 0.15, 0.25, 0.35]
        table = against(self.CLEAR, [gain] * 5)
        assert "53.0 ± 1.6 (+3.0* †5/5)" in table.text()
        assert r"| **53.0 ± 1.6** (+3.0\* †5/5) |" in table.markdown()
        assert r"\textbf{53.0 $\pm$ 1.6} (+3.0$^{*}$ $\dagger$5/5)" in table.latex()
        base, ours = csv.DictReader(io.StringIO(table.csv()))
        assert (base["personal delta"], base["personal p"]) == ("", "")
        assert float(ours["personal delta"]) == pytest.approx(0.03)
        assert ours["personal seeds whose clients agree"] == "5"
        assert "bytes delta" not in ours

    def test_only_common_seeds_are_paired(self) -> None:
        runs = [found("base", 0, None, 0.5), found("ours", 0, None, 0.6), found("ours", 1, None, 0.9)]
        assert beside(comparison_table(runs, baseline="base")) == "(+10.0)"

    def test_a_baseline_without_a_result(self) -> None:
        table = comparison_table([found("ours", 0, None, 0.6)], baseline="base")
        assert table.legend == ["there is nothing to set against base yet"]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_500_000, "1.5 MB"), (2.5e9, "2.5 GB"), (3e12, "3000.0 GB")],
)
def test_size(count: float, text: str) -> None:
    assert size(count) == text


def described(clients: int = 2) -> dict[str, Any]:
    """A small split by hand."""
    row = {"id": 0, "train": 9, "val": 0, "test": 2, "counts": [8, 1, 0]}
    other = {"id": 1, "train": 4, "val": 1, "test": 1, "counts": [0, 0, 4]}
    return {
        "total": 17,
        "classes": 3,
        "global_test": 5,
        "clients": [{**(row if k % 2 == 0 else other), "id": k} for k in range(clients)],
        "imbalance_factor": 8.0,
        "mean_distance": 0.7512,
        "notes": {"moved": 2},
    }


def test_split_picture() -> None:
    _, first, second = split_picture(described()).splitlines()
    assert first.endswith("|█▁ |")  # 8, 1 and 0 of the largest cell, 8
    assert second.endswith("|  ▄|")
    assert first.split("|")[0].split() == ["0", "9", "0", "2"]


def test_split_picture_of_many_clients() -> None:
    lines = split_picture(described(50)).splitlines()
    assert len(lines) == 1 + 40 + 1
    assert lines[-1].strip() == "... and 10 more clients"


def test_split_text() -> None:
    text = split_text(described())
    assert text.startswith("17 samples, 3 classes, 2 clients, 5 in the global test set\n")
    assert "imbalance factor 8; mean distance to the global label distribution 0.751" in text
    assert "\nmoved: 2\n" in text
    assert text.endswith(split_picture(described()))


class TestLegendOfTimes:
    PHASES = {"setup": 1.0, "train": 6.0, "server": 0.5, "eval": 2.0, "finish": 0.0, "checkpoint": 0.5, "report": 0.25}

    def told(self, method: str, **seconds: float) -> Found:
        made = found(method, 0, 0.5, 0.6)
        made.summary["seconds"] |= self.PHASES | seconds  # type: ignore[index]
        return made

    def test_phases_of_all_runs_and_who_trained_less_than_it_did_else(self) -> None:
        table = comparison_table([self.told("fedavg"), self.told("fedper", eval=11.5)])
        assert table.legend == [
            "seconds by phase, 2 runs: setup 2.0, train 12.0, server 1.0, eval 13.5, finish 0.0, checkpoint 1.0, "
            "report 0.5",
            "FedPer: 13.8 s were spent outside training and 6.0 s in it: 11.5 s in eval and 1.0 s in setup",
        ]

    def test_one_run(self) -> None:
        (line,) = comparison_table([self.told("fedavg")]).legend
        assert line.startswith("seconds by phase, 1 run: setup 1.0, train 6.0")

    def test_runs_that_do_not_tell_have_no_line(self, table: Table) -> None:
        assert table.legend == []


class TestBaseRate:
    """The success rate of the same run in which nobody attacks stands beside that of the attack."""

    @staticmethod
    def under(attack: Any, asr: float, seed: int = 0, **setting: Any) -> Found:
        made = found("fedavg", seed, 0.5, 0.5, setting={"attack": attack, **setting})
        return Found(made.row, seed, {**made.summary, "threats": {"asr": asr}}, made.setting)

    def test_it_is_found_by_everything_but_the_rounds(self) -> None:
        flip = {"name": "label-flip", "count": 1}
        runs = [self.under(flip, 0.5), self.under({**flip, "rounds": "never"}, 0.1)]
        runs += [self.under({**flip, "count": 2}, 0.7), self.under(flip, 0.6, seed=1)]
        (row, never, other) = comparison_table(runs, columns=choose_columns(["asr"])).numbers
        assert (row["asr mean"], row["asr base mean"]) == (pytest.approx(0.55), pytest.approx(0.1))
        assert (never["asr base mean"], other["asr base mean"]) == ("", "")

    def test_rounds_may_be_an_axis_of_their_own(self) -> None:
        runs = [
            self.under("label-flip", asr, **{"attack.rounds": when}) for when, asr in (("all", 0.5), ("never", 0.2))
        ]
        table = comparison_table(runs, columns=choose_columns(["asr", "personal"]))
        assert table.head[-3:] == ["asr", "asr base", "personal"]
        assert [row[-2] for row in table.rows] == ["20.0", "–"]
        others = [
            replace(one, row="fedper", summary={**one.summary, "threats": {"asr": asr}})
            for one, asr in zip(runs, (0.4, 0.1), strict=True)
        ]
        (rows, _) = comparison_table([*runs, *others], columns=choose_columns(["asr"])).groups
        assert [(row[-1].plain, row[-1].rank) for row in rows] == [("20.0", ""), ("10.0", "")]  # none is better
        assert [row[-2].rank for row in rows] == ["", "bold"]

    def test_without_it_there_is_no_column(self) -> None:
        table = comparison_table([self.under("label-flip", 0.5)], columns=choose_columns(["asr"]))
        assert "asr base" not in table.head


class TestThreats:
    """What attacks achieve, by method, attack and defence."""

    @staticmethod
    def under(row: str, defence: str, asr: float | None, seed: int = 0, **more: float) -> Found:
        made = found(row, seed, 0.5, 0.5, setting={"defence": defence})
        told = {"attack": "label-flip", "defence": defence, "acc": 0.4 + 0.2 * seed, "asr": asr, **more}
        return Found(made.row, seed, {**made.summary, "threats": told}, made.setting)

    def test_a_row_per_method_and_setting_over_seeds_in_which_the_lowest_success_is_best(self) -> None:
        rates = {("fedavg", "none"): 0.5, ("fedper", "none"): 0.1, ("ditto", "none"): 0.3, ("fedavg", "krum"): 0.2}
        table = threats_table([self.under(*place, rate, seed) for place, rate in rates.items() for seed in (0, 1)])
        assert table is not None
        assert table.head == ["method", "defence", "acc", "asr"]
        assert table.rows[0][:2] == ["FedAvg", "none"]
        assert table.rows[0][2:] == ["50.0 ± 14.1", "50.0 ± 0.0"]
        assert {row[0].text: row[3].rank for row in table.groups[0]} == {
            "FedAvg": "",
            "FedPer": "bold",
            "Ditto": "underline",
        }
        assert table.legend == ["attack: label-flip; defence: none, krum"]

    def test_detection_is_there_where_a_defence_names_suspects(self) -> None:
        runs = [self.under("fedavg", "krum", None, precision=0.5, recall=1.0), self.under("fedavg", "median", None)]
        table = threats_table(runs)
        assert table is not None
        assert table.head[2:] == ["acc", "precision", "recall"]
        assert [row[3:] for row in table.rows] == [["50.0", "100.0"], ["–", "–"]]

    def test_nothing_without_an_attack(self) -> None:
        assert threats_table([found("fedavg", 0, 0.5, 0.5)]) is None
        assert threats_table([]) is None
