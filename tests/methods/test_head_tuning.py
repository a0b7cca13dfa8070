"""Which methods tune a head without autograd at their default keys."""

from collections.abc import Callable
from typing import Any

import pytest
from riding import Ride

from polyfed.parts import closed_form
from polyfed.parts.fit import Fit


@pytest.mark.parametrize("name", ["mupfl", "creff", "fedrep", "fedcrc", "ecl"])
def test_every_fit_of_a_head_on_features_is_in_closed_form(
    name: str, ride: Callable[..., Ride], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_features, descended = [], []
    run, descend = Fit.run, closed_form.descend

    def running(self: Fit, steps: int, *given: Any) -> int:
        if self.stream.samples.cut == "head":
            on_features.append(steps)
        return run(self, steps, *given)

    def descending(fit: Fit, steps: int) -> None:
        descended.append(steps)
        descend(fit, steps)

    monkeypatch.setattr(Fit, "run", running)
    monkeypatch.setattr(closed_form, "descend", descending)
    few = {"mupfl": {"method.tau": 2, "method.match_steps": 5}, "creff": {"method.match_steps": 5}}  # only shorter
    ride(name, data="skewed", model="mlp", seed=23, **few.get(name, {}))  # runs are kept: a seed of its own
    assert on_features
    assert descended == on_features
