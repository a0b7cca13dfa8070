"""The example of worlds with natural clients: its page shows the numbers that are kept, and runs go into both."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("worlds", ROOT / "examples" / "worlds.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lines(example: Any, world: str, **rows: list[float]) -> list[dict[str, str]]:
    made = [
        (world, row, str(seed), f"{value:.6f}", "0" * 16)
        for row, some in rows.items()
        for seed, value in enumerate(some)
    ]
    return [dict(zip(example.FIELDS, one, strict=True)) for one in made]


def test_the_page_shows_what_is_kept(example: Any) -> None:
    page, kept = (ROOT / "docs" / "worlds.md").read_text(encoding="utf-8"), ROOT / "results" / "worlds.csv"
    numbers = example.read_numbers(kept)
    assert example.filled(page, numbers) == page
    assert {name for _, name, _ in example.PLACE.findall(page)} == {*example.WORLDS, example.BY_BN}
    rows = {row["name"] for row in example.ROWS}
    for world in {line["world"] for line in numbers}:
        assert {line["row"] for line in numbers if line["world"] == world} == rows, world
        assert all(len(example.of_row(numbers, world, row)) == 3 for row in rows), world


def test_tables_are_written_between_marks_alone(example: Any) -> None:
    numbers = lines(example, "wisdm", fedavg=[0.5, 0.7], distfl=[0.5, 0.6], **{"distfl-bn": [0.52, 0.64]})
    marks = [
        f"<!-- {name}: examples/worlds.py writes this -->\nold\n<!-- end of {name} -->"
        for name in ("wisdm", "knowledge-bn")
    ]
    page = example.filled("before\n" + "\n".join(marks) + "\nafter\n", numbers)
    assert "| `fedavg` | 60.0 ± 14.1 | 2 |" in page
    assert example.filled("<!-- pacs: examples/worlds.py x -->\nold\n<!-- end of pacs -->", numbers).count("old") == 1
    assert "| wisdm | +2.0, +4.0 | +3.0 | -9.7 to +15.7 |" in page  # 3 -+ 12.706 * 1.4142 / 1.4142
    assert (page.startswith("before\n<!-- wisdm"), page.endswith("-->\nafter\n"), "old" in page) == (True, True, False)


def test_a_world_that_is_run_again_leaves_the_others(example: Any, tmp_path: Path) -> None:
    file = tmp_path / "numbers.csv"
    example.keep_numbers(file, lines(example, "pacs", fedavg=[0.3]))
    example.keep_numbers(file, lines(example, "wisdm", fedavg=[0.5]))
    example.keep_numbers(file, lines(example, "pacs", fedavg=[0.4, 0.6]))
    found = example.read_numbers(file)
    assert [(line["world"], line["accuracy"]) for line in found] == [
        ("wisdm", "0.500000"), ("pacs", "0.400000"), ("pacs", "0.600000"),
    ]  # fmt: skip
