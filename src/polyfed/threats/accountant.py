"""What private steps cost, as Opacus counts it: nothing else of Opacus is used.

A history is a list of (sigma, q, steps): that many steps with the noise multiplier sigma, on batches in which each
example (or each client) is included with the probability q.
"""

import warnings
from collections.abc import Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from polyfed.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

Accountant = Literal["rdp", "prv"]
Entry = tuple[float, float, int]


def epsilon_of(history: Sequence[Sequence[float]], delta: float, accountant: Accountant = "rdp") -> float:
    """The epsilon that a history has spent at this delta."""
    entries = tuple((float(sigma), float(q), int(steps)) for sigma, q, steps in history if steps)
    return _epsilon(entries, delta, accountant) if entries else 0.0


def add(history: list[list[float]], sigma: float, q: float, steps: int) -> None:
    """Append steps to a history; steps with the same sigma and q as the last entry are added to it."""
    if history and history[-1][:2] == [sigma, q]:
        history[-1] = [sigma, q, history[-1][2] + steps]
    else:
        history.append([sigma, q, steps])


@cache
def noise_for(epsilon: float, delta: float, q: float, steps: int, accountant: Accountant = "rdp") -> float:
    """Nearly the smallest noise multiplier with which this many steps spend no more than epsilon."""
    need_opacus()
    from opacus.accountants.utils import get_noise_multiplier

    with _quiet():
        try:
            return float(
                get_noise_multiplier(
                    target_epsilon=epsilon, target_delta=delta, sample_rate=q, steps=steps, accountant=accountant
                )
            )
        except ValueError:
            raise UsageError(
                f"privacy.epsilon={epsilon:g} is too small: no noise reaches it in {steps} steps at q={q:.3g}"
            ) from None


@cache
def _epsilon(entries: tuple[Entry, ...], delta: float, accountant: Accountant) -> float:
    need_opacus()
    with _quiet():
        if accountant == "prv":
            from opacus.accountants import PRVAccountant

            counted = PRVAccountant()
            counted.history = list(entries)
            return float(counted.get_epsilon(delta))
        from opacus.accountants import RDPAccountant
        from opacus.accountants.analysis import rdp

        orders = RDPAccountant.DEFAULT_ALPHAS
        total = sum(_rdp_of_step(sigma, q) * steps for sigma, q, steps in entries)
        return float(rdp.get_privacy_spent(orders=orders, rdp=total, delta=delta)[0])


@cache
def _rdp_of_step(sigma: float, q: float) -> Any:
    """The Renyi divergence of one step at every order: steps add up, so it is computed once for all rounds."""
    from opacus.accountants import RDPAccountant
    from opacus.accountants.analysis import rdp

    return rdp.compute_rdp(q=q, noise_multiplier=sigma, steps=1, orders=RDPAccountant.DEFAULT_ALPHAS)


@contextmanager
def _quiet() -> "Iterator[None]":
    """Opacus warns that the best order is the largest or smallest it tries; the bound holds all the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@cache
def need_opacus() -> None:
    """Refuse in a sentence where the accountant is not installed, or what keyed noise is made with."""
    try:
        with _quiet():
            import cryptography  # noqa: F401
            import opacus  # noqa: F401
    except ImportError as error:
        missing = "cryptography" if "cryptography" in str(error) else "opacus"
        raise UsageError(f"privacy needs the package '{missing}': pip install 'polyfed[privacy]'") from None
