"""Plain constants in a method's class, beside its typed parameters."""

import pytest

from polyfed.methods.base import Method
from polyfed.methods.fedprox import FedProx
from polyfed.registry import param


def test_a_plain_constant_is_no_parameter() -> None:
    class Scaled(Method):
        """Has constants of several kinds."""

        SCALE = 3
        RATES = (0.1, 0.2)
        WORDS = ["a"]
        mu: float = param(0.5, "a parameter")

    assert (Scaled().SCALE, Scaled().RATES, Scaled.WORDS) == (3, (0.1, 0.2), ["a"])
    assert set(Scaled.model_fields) == {"mu"}
    assert Scaled(mu=2).dump() == {"name": "", "mu": 2.0}


def test_a_parameter_is_changed_by_a_parameter_only() -> None:
    with pytest.raises(TypeError, match="'mu' is a parameter of Nearer"):

        class Nearer(FedProx):
            mu = 0.5

    class Near(FedProx):
        mu: float = param(0.5, "another default")

    assert Near().mu == 0.5
