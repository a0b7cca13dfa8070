"""The demo of DistFL's Figures 6 and 8: what contrast is, and when the types count as found."""

import numpy as np
import pytest

from polyfed.papers.demos.responses import _contrast, _same, _types


def test_contrast_is_the_divergence_between_types_over_that_within() -> None:
    same = np.equal.outer(_types(10), _types(10))
    sim = np.where(same, 2.0, 6.0)
    np.fill_diagonal(sim, 0.0)
    assert _contrast(sim) == pytest.approx(3.0)


def test_types_are_found_under_any_names() -> None:
    assert _same([4, 4, 1, 1, 0, 0, 2, 2, 3, 3])
    assert not _same([4, 4, 1, 1, 0, 0, 2, 2, 2, 2])
    assert not _same([0] * 10)
