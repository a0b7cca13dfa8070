"""Rides are kept for the session: the same tiny run serves every test that looks at it."""

from collections.abc import Callable
from typing import Any

import pytest
import riding


@pytest.fixture(scope="session")
def ride(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., riding.Ride]:
    """ride(method, data=, model=, **keys): a tiny run with its record."""
    kept: dict[str, riding.Ride] = {}

    def get(method: Any = "fedavg", **keys: Any) -> riding.Ride:
        key = repr((method if isinstance(method, str | dict) else id(method), sorted(keys.items())))
        if key not in kept:
            kept[key] = riding.ride(tmp_path_factory.mktemp("ride") / "run", method, **keys)
            assert kept[key].result["failed"] == {}
        return kept[key]

    return get
