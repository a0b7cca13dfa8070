"""What a process remembers of fits that are asked for again."""

from typing import Any

import pytest
import torch

from polyfed.methods.sites import fitted
from polyfed.methods.sites.fitted import Fitted, remember, start_digest
from polyfed.parts.fit import Tally


def left(key: str, numbers: int = 0) -> Fitted:
    return Fitted(key, (torch.zeros(numbers), torch.zeros(0)), Tally(), {})


def test_a_site_has_one_fit_and_the_oldest_of_others_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitted, "MOST", 3 * left("", 10).size)
    held: dict[str, Any] = {}
    for whose in "abc":
        remember(held, whose, left(whose, 10))
    remember(held, "a", left("again", 10))
    assert [one.key for one in held.values()] == ["b", "c", "again"]
    remember(held, "d", left("d", 10))
    assert list(held) == ["c", "a", "d"]


def test_a_start_is_its_place_and_every_value() -> None:
    x = torch.arange(6.0)
    starts = [("1", [x]), ("2", [x]), ("1", [x.view(2, 3)]), ("1", [x + 1]), ("1", [x, x[:0]]), ("1", [x.double()])]
    assert len({start_digest(*start) for start in starts}) == len(starts)
    assert start_digest("1", [x.view(2, 3).T]) == start_digest("1", [x.view(2, 3).T.contiguous()])
