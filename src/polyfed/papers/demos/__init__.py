"""Experiments of the papers that are no comparison of runs: each is a function from a seed and keys to numbers.

A file of this folder registers one demo with a pydantic model of its keys, the function and its drawing:

    class Keys(DemoKeys):
        tiny = {"steps": 2}  # for a test
        observed: int = 8
        steps: int = 500

    @demo("proxies", Keys)
    def proxies(seed: int, keys: Keys) -> Demo: ...

    @proxies.drawing
    def draw(shown: Sequence[Shown]) -> Drawn: ...

A drawing in a file of its own may change without making stored numbers stale, because only what the function's file
imports counts. The function is deterministic and draws its chance from polyfed.rng. Its numbers are judged; its arrays,
rounded to four digits and small, are for its drawing alone. A demo without a drawing is drawn as bars of its numbers.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
from pydantic import ValidationError

from polyfed.config import Tree
from polyfed.errors import UsageError, did_you_mean
from polyfed.registry import Typed, explain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from polyfed.report.charts import Chart


SHORT = 1e-6  # epochs: steps are counted instead


class DemoKeys(Typed):
    """The keys of a demo; every demo has its own, and `tiny` are those with which it takes a second or two."""

    tiny: ClassVar[Tree] = {}

    def trains(self) -> Iterable[tuple[Tree, float]]:
        """The experiments that it trains, each with how many times over; by them its time is estimated."""
        return ()


class ExperimentKeys(DemoKeys):
    """The experiment whose methods a demo runs."""

    tiny: ClassVar[Tree] = {
        "experiment": {
            "rounds": 2,
            "participation": 1.0,
            "data": {"limit": 20},
            "model": {"width": 0.1},
            "split": {"clients": 3, "longtail": 1.0, "min": 0},
            "train": {"epochs": 1.0, "batch": 16, "schedule": "constant"},
            "eval": {"every": 1},
            "engine": {"workers": 0},
        }
    }
    models: ClassVar[int] = 1  # that it trains for as long as the experiment says
    experiment: Tree

    def trains(self) -> Iterable[tuple[Tree, float]]:
        """Its experiment, once for each of these models."""
        yield self.experiment, self.models


K = TypeVar("K", bound=DemoKeys)


@dataclass(frozen=True)
class Demo:
    """What a demo found: a number for each row and column, and arrays for its picture."""

    numbers: Mapping[str, Mapping[str, float]]
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Shown:
    """A finished demo as its drawing gets it: the panel, the seed, and what was found."""

    panel: str
    seed: int
    found: Demo


@dataclass(frozen=True)
class Drawn:
    """A picture, and its data as the rows of a CSV file, all with the same keys."""

    figure: "Figure"
    rows: Sequence[Mapping[str, Any]]


Drawing = Callable[[Sequence[Shown]], Drawn]


def drawn(chart: "Chart") -> Drawn:
    """A chart in print."""
    from matplotlib import pyplot

    from polyfed.report.print import STYLE, drawing

    with pyplot.rc_context(STYLE):
        return Drawn(drawing(chart.written()), chart.frame().to_dict("records"))


@dataclass(eq=False)
class Experiment(Generic[K]):
    """A registered demo."""

    name: str
    keys: type[K]
    function: Callable[[int, K], Demo]
    draw: Drawing | None = None

    def __call__(self, seed: int, given: Tree) -> Demo:
        """Run it with these keys, which are checked."""
        return self.function(seed, self.checked(given))

    def checked(self, given: Tree) -> K:
        """Its keys by type; a mistake is one sentence."""
        try:
            return self.keys(**given)
        except ValidationError as error:
            what = f"demo '{self.name}'"
            raise UsageError(explain(error, self.name, set(self.keys.model_fields), what)) from None

    def drawing(self, function: Drawing) -> Drawing:
        """Decorator: this draws it."""
        self.draw = function
        return function


_demos: dict[str, Experiment[Any]] = {}


def demo(name: str, keys: type[K]) -> Callable[[Callable[[int, K], Demo]], Experiment[K]]:
    """Decorator: this function is the demo of that name."""

    def enter(function: Callable[[int, K], Demo]) -> Experiment[K]:
        made = Experiment(name, keys, function)
        _demos[name] = made
        return made

    return enter


def demos() -> Mapping[str, Experiment[Any]]:
    """Every demo, by its name."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return _demos


def demo_of(name: str) -> Experiment[Any]:
    """The demo of that name."""
    known = demos()
    if name not in known:
        raise UsageError(f"there is no demo '{name}'; {did_you_mean(name, known)}")
    return known[name]
