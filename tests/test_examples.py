"""The example that compares all methods, whole but tiny: it runs, writes its page, and goes on where it was."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "all_methods.py"


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("all_methods", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_all_methods_but_presets_are_compared(example: Any) -> None:
    names = example.compared()
    assert {"fedavg", "local", "lws", "tau-norm", "fedafa", "mupfl"} <= set(names)
    assert not {"mupfl-paper", "distfl-official", "scaffold-official"} & set(names)


@pytest.mark.slow
def test_the_page_is_written_and_the_command_goes_on(example: Any, tmp_path: Path) -> None:
    budget = {"rounds": 2, "seeds": 2, "jobs": 1, "engine.workers": 0, "tune": {"train.lr": [0.01, 0.1]}}
    example.BUDGET = {**example.BUDGET, **budget}
    settings = {"digits": {"data.limit": 30, "split.clients": 5, "model.width": 0.1}}
    for _ in range(2):
        made = example.run(tmp_path / "runs", ["fedavg", "local", "fedper"], settings, quiet=True)
        example.write(made, example.scores_of(made), tmp_path / "docs" / "page.md")
    text = (tmp_path / "docs" / "page.md").read_text()
    assert text.startswith("# Methods compared\n")
    assert "| method | family | mean rank | digits, lr |" in text
    assert all(f"| `{name}` | " in text for name in ("fedavg", "local", "fedper"))
    assert "- digits: " in text.split("## Behind Local")[1]
    assert (tmp_path / "docs" / "pictures" / "method-ranks.svg").exists()
    assert (tmp_path / "docs" / "pictures" / "method-ranks.csv").exists()
