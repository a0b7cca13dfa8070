"""Golden metrics on digits for every method: accuracies within a tolerance, bytes exactly; never fingerprints.

A new method, or one whose numbers changed for a good reason:
    python tests/methods/test_golden.py NAME [NAME ...]      (no name: every method without a file)
writes tests/golden/NAME.json. What keeps it small is in small.py.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from small import SMALL

import polyfed
from polyfed.methods.base import methods

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
NAMES = [name for name in methods.names() if ":" not in name]
TOLERANCE = 0.06
DIGITS: dict[str, Any] = {
    "data.name": "digits",
    "split.partition": "dirichlet",
    "split.alpha": 0.3,
    "split.clients": 6,
    "model.name": "mlp",
    "model.width": 0.1,
    "rounds": 4,
    "train.lr": 0.05,
    "train.momentum": 0.9,
    "engine.workers": 0,
    "checkpoint.every": 100,
    "eval.every": 4,
}


def measure(name: str, out: Path) -> dict[str, Any]:
    """The numbers of a method; what failed or was rejected must be nothing."""
    result = polyfed.run(DIGITS, {"method.name": name}, SMALL.get(name, {}), out=out)
    assert result["failed"] == result["rejected"] == {}
    whole = result["global"]
    return {
        "global": None if whole is None else round(whole["accuracy"], 4),
        "personal": round(result["personal.accuracy"], 4),
        "bytes": result["bytes"],
    }


@pytest.mark.parametrize("name", NAMES)
def test_golden(name: str, tmp_path: Path) -> None:
    path = GOLDEN / f"{name}.json"
    assert path.exists(), f"method '{name}' has no golden file; make it: python tests/methods/test_golden.py {name}"
    expected, found = json.loads(path.read_text()), measure(name, tmp_path / "run")
    assert found["bytes"] == expected["bytes"]
    for key in ("global", "personal"):
        if expected[key] is None:
            assert found[key] is None
        else:
            assert found[key] == pytest.approx(expected[key], abs=TOLERANCE)


def test_every_golden_file_belongs_to_a_method() -> None:
    assert {path.stem for path in GOLDEN.glob("*.json")} <= set(NAMES)


def test_goldens_are_worth_comparing() -> None:
    """They were trained: better than guessing, and not all the same."""
    found = [json.loads(path.read_text()) for path in GOLDEN.glob("*.json")]
    assert min(each["personal"] for each in found) > 0.2
    assert len({each["personal"] for each in found}) > len(found) / 2


def write(names: list[str]) -> None:
    """Measure and keep."""
    GOLDEN.mkdir(exist_ok=True)
    for name in names or [n for n in NAMES if not (GOLDEN / f"{n}.json").exists()]:
        with tempfile.TemporaryDirectory() as folder:
            numbers = measure(name, Path(folder) / "run")
        (GOLDEN / f"{name}.json").write_text(json.dumps(numbers, indent=1) + "\n")
        print(name, numbers)


if __name__ == "__main__":
    write(sys.argv[1:])
