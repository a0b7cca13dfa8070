"""Tables from hand-made summaries: every form says the same, and what is missing stays missing."""

import csv
import io
from typing import Any

import pytest

from polyfed.report.tables import COLUMNS, comparison_table, size, split_picture, split_text


def summary(method: str, seed: int, overall: float | None, personal: float, **more: Any) -> dict[str, Any]:
    """As much of a summary as a table needs."""
    numbers = {"accuracy": personal, "head": 0.9, "mid": 0.5, "tail": None, "worst10": 0.25}
    return {
        "method": method,
        "seed": seed,
        "global": None if overall is None else {"accuracy": overall},
        "personal": numbers,
        "bytes": {"up": 1_000_000, "down": 500_000, "eval": 7},
        "seconds": {"total": 2.04},
        **more,
    }


@pytest.fixture
def table() -> Any:
    """Two methods, two seeds; fedper has no global model."""
    made = [summary("fedavg", 0, 0.5, 0.6), summary("fedper", 0, None, 0.75)]
    return comparison_table([*made, summary("fedavg", 1, 0.7, 0.6), summary("fedper", 1, None, 0.85)])


ROWS = [
    ["fedavg", "60.0 ± 14.1", "60.0 ± 0.0", "90.0 ± 0.0", "50.0 ± 0.0", "–", "25.0 ± 0.0", "1.5 MB", "2.0"],
    ["fedper", "–", "80.0 ± 7.1", "90.0 ± 0.0", "50.0 ± 0.0", "–", "25.0 ± 0.0", "1.5 MB", "2.0"],
]
HEAD = ["method", "global", "personal", "head", "mid", "tail", "worst 10 %", "bytes", "seconds"]


def test_text(table: Any) -> None:
    head, rule, *rows = table.text().splitlines()
    assert head.split("  ")[0] == "method"
    assert set(rule) == {"-", " "}
    for row, cells in zip(rows, ROWS, strict=True):
        at = 0
        for cell in cells:
            at = row.index(cell, at) + len(cell)
        assert at == len(row)  # nothing behind the last cell
    assert len({line.index("1.5 MB") for line in rows}) == 1  # columns stand under each other


def test_markdown(table: Any) -> None:
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.markdown().splitlines()]
    assert lines == [HEAD, ["---", *["---:"] * 8], *ROWS]


def test_latex(table: Any) -> None:
    text = table.latex()
    assert text.startswith("\\begin{tabular}{lrrrrrrrr}\n\\toprule\n")
    assert r"fedavg & 60.0 $\pm$ 14.1 & 60.0 $\pm$ 0.0 &" in text
    assert r"worst 10 \%" in text
    assert text.endswith("\\bottomrule\n\\end{tabular}\n")
    assert text.count(r" \\") == 3


def test_latex_escapes_names() -> None:
    text = comparison_table([summary("my_file.py:A&B#1", 0, 0.5, 0.5)]).latex()
    assert r"my\_file.py:A\&B\#1 & 50.0" in text


def test_csv(table: Any) -> None:
    fedavg, fedper = csv.DictReader(io.StringIO(table.csv()))
    assert (fedavg["method"], fedavg["seeds"]) == ("fedavg", "2")
    assert float(fedavg["global mean"]) == pytest.approx(0.6)
    assert float(fedavg["global std"]) == pytest.approx(0.1414, abs=1e-4)
    assert fedper["global mean"] == fedper["global std"] == fedper["tail mean"] == ""
    assert float(fedper["bytes mean"]) == 1_500_000  # up and down, evaluation is not traffic of training
    assert list(fedavg) == [
        "method",
        "seeds",
        *(f"{name} {what}" for name, _, _ in COLUMNS for what in ("mean", "std")),
    ]


def test_one_seed_has_no_spread() -> None:
    table = comparison_table([summary("fedavg", 0, 0.5, 0.6)])
    assert "50.0 " in table.text()
    assert "±" not in table.text()
    (row,) = csv.DictReader(io.StringIO(table.csv()))
    assert row["global std"] == ""


def test_method_without_any_test() -> None:
    table = comparison_table([summary("fedavg", 0, None, 0.6) | {"personal": None}])
    assert table.rows == [["fedavg", "–", "–", "–", "–", "–", "–", "1.5 MB", "2.0"]]


def test_rows_come_in_the_order_of_the_methods() -> None:
    table = comparison_table([summary(name, 0, 0.5, 0.6) for name in ("zeta", "alpha", "mid")])
    assert [row[0] for row in table.rows] == ["zeta", "alpha", "mid"]


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
