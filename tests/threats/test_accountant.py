"""What private steps cost: the figures of Opacus 1.6."""

import sys

import pytest

from polyfed.errors import UsageError
from polyfed.threats import accountant
from polyfed.threats.accountant import add, epsilon_of, noise_for

pytestmark = pytest.mark.extras
pytest.importorskip("opacus", reason="skipped: no opacus")

FIGURES = [
    ((1.0, 0.01, 1000), 1e-5, 2.101365, 1.8384),
    ((1.1, 256 / 60000, 14062), 1e-5, 2.596556, 2.3917),
    ((1.0, 0.08, 500), 1e-5, 13.983971, 12.8023),
    ((2.0, 0.2, 100), 1e-3, 4.031905, 3.5329),
    ((4.0, 1.0, 50), 1e-5, 9.234959, 8.6063),
]


@pytest.mark.parametrize(("entry", "delta", "rdp", "prv"), FIGURES)
def test_the_accountants_figures(entry: tuple[float, float, int], delta: float, rdp: float, prv: float) -> None:
    assert epsilon_of([entry], delta, "rdp") == pytest.approx(rdp, abs=1e-6)
    assert epsilon_of([entry], delta, "prv") == pytest.approx(prv, abs=1e-3)


def test_the_noise_for_a_budget() -> None:
    assert noise_for(8.0, 1e-5, 0.08, 500) == pytest.approx(1.380615, abs=1e-6)
    assert noise_for(1.0, 1e-5, 0.01, 1000) == pytest.approx(1.523438, abs=1e-6)
    assert 7.9 < epsilon_of([(noise_for(8.0, 1e-5, 0.08, 500), 0.08, 500)], 1e-5) <= 8.0


def test_histories_add_up() -> None:
    history: list[list[float]] = []
    for _ in range(3):
        add(history, 1.0, 0.08, 1)
    assert history == [[1.0, 0.08, 3]]
    assert epsilon_of([(1.0, 0.08, 1)] * 3, 1e-5) == pytest.approx(epsilon_of(history, 1e-5), rel=1e-12)
    add(history, 2.0, 0.08, 1)
    assert history == [[1.0, 0.08, 3], [2.0, 0.08, 1]]
    assert epsilon_of(history, 1e-5) > epsilon_of(history[:1], 1e-5)
    assert epsilon_of([], 1e-5) == 0.0


def test_an_epsilon_that_no_noise_reaches_is_refused() -> None:
    with pytest.raises(UsageError, match=r"epsilon=1e-12 is too small"):
        noise_for(1e-12, 1e-5, 1.0, 10)


@pytest.mark.parametrize("package", ["opacus", "cryptography"])
def test_without_a_package_a_sentence_says_what_to_install(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    accountant.need_opacus.cache_clear()
    with pytest.raises(UsageError, match=rf"the package '{package}': pip install 'polyfed\[privacy\]'"):
        accountant.need_opacus()
    accountant.need_opacus.cache_clear()
