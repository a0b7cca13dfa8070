"""Noise: normal, keyed or secret; and what the bound of an update counts."""

import pytest
import torch

from polyfed.threats.privacy.noise import ROUNDING, _normal_from, clipped, normal, secret_generator

pytest.importorskip("cryptography", reason="skipped: no cryptography")

# ---- keyed


def keyed(*key):
    return normal(False, 3, "dp-noise", *key)


def test_keyed_noise_is_normal():
    """By Kolmogorov's test, up to its tails, and without correlation between neighbours."""
    values = keyed(1, 0)(torch.zeros(1000, 1000)).flatten()
    assert values.dtype == torch.float32
    ordered = values.double().sort().values
    below = torch.special.ndtr(ordered)
    ranks = torch.arange(1, len(ordered) + 1) / len(ordered)
    assert float((below - ranks).abs().max()) < 1.63 / 1000  # one time in a hundred it would be more
    assert float(values.double().var()) == pytest.approx(1, abs=0.005)
    assert float(values.double().pow(4).mean()) == pytest.approx(3, abs=0.05)
    assert 4.4 < float(values.abs().max()) < 5.5
    for apart in (1, 2, 4):
        assert abs(float((values[apart:] * values[:-apart]).double().mean())) < 0.005


def test_the_largest_and_the_smallest_integer_are_finite():
    ends = torch.tensor([-(2**31), 2**31 - 1, 0], dtype=torch.int32)
    made = _normal_from(ends, torch.zeros(3)).tolist()
    assert made == pytest.approx([-5.42, 5.42, 0], abs=0.01)


def test_keyed_noise_goes_on_and_depends_on_every_part_of_its_key():
    first, again = keyed(1, 0), keyed(1, 0)
    parts = [first(torch.zeros(3)), first(torch.zeros(2, 5)), first(torch.zeros(0))]
    assert [part.shape for part in parts] == [(3,), (2, 5), (0,)]
    assert torch.equal(torch.cat([part.flatten() for part in parts]), again(torch.zeros(13)))
    others = [keyed(2, 0), keyed(1, 1), normal(False, 4, "dp-noise", 1, 0), normal(False, 3, "user-noise", 1, 0)]
    whole = keyed(1, 0)(torch.zeros(13))
    assert all(not torch.isclose(whole, other(torch.zeros(13))).any() for other in others)


# ---- secret


def test_secret_noise_is_normal_and_does_not_come_from_a_seed_of_32_bits(monkeypatch):
    def refused(*_):
        raise AssertionError("torch keeps only 32 bits of a seed")

    monkeypatch.setattr(torch, "Generator", refused)
    draws = [normal(True, 0, "dp-noise", 1, 0)(torch.zeros(100, 200)) for _ in range(2)]
    assert not torch.equal(*draws)
    assert draws[0].dtype == torch.float32
    for values in draws:
        assert float(values.mean()) == pytest.approx(0, abs=0.05)
        assert float(values.std()) == pytest.approx(1, abs=0.03)
    assert len({secret_generator().bit_generator.state["state"]["key"].tobytes() for _ in range(9)}) == 9


# ---- the bound


def test_clipping_counts_what_was_longer():
    assert clipped(torch.tensor([3.0, 4.0]), 5.0)[1] is False
    shorter, was_longer = clipped(torch.tensor([3.0, 4.0]), 1.0)
    assert was_longer
    assert shorter.tolist() == pytest.approx([0.6, 0.8])


def test_a_short_update_stays_and_rounding_counts_as_nothing():
    short = torch.tensor([3.0, 4.0])
    assert clipped(short, 10.0)[0] is short
    assert clipped(short, 5 / (1 + ROUNDING / 2))[1] is False
    assert clipped(short, 5 / (1 + 2 * ROUNDING))[1] is True
