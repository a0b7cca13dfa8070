"""Which methods tune a head, or factors of its logits, without autograd at their default keys."""

from collections.abc import Callable
from typing import Any

import pytest
from riding import Ride

from polyfed.parts import closed_form
from polyfed.parts.fit import Fit
from polyfed.parts.resident import Batch
from polyfed.parts.steps import Grads


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


def test_factors_on_features_are_learnt_without_autograd(ride: Callable[..., Ride], monkeypatch: Any) -> None:
    cuts: list[str | None] = []
    gradient = Fit._gradient

    def asked(self: Fit, batch: Batch) -> Grads:
        cuts.append(batch.on.cut)
        return gradient(self, batch)

    monkeypatch.setattr(Fit, "_gradient", asked)
    run = ride("lws", data="skewed", model="mlp", seed=23)
    assert set(cuts) == {None}, "the base's training"
    assert all(seen.numbers["steps"] > 0 for seen in run.of("finish"))
