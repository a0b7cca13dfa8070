"""The gate: declared keys, shapes, types, finite, not too long; a reason means rejected."""

import math

import pytest
import torch
from torch import nn

from own_methods import Evil, spoiled
from polyfed.engine.gate import Gate
from polyfed.message import Field, Message, Wire
from polyfed.methods.base import part_message
from polyfed.params import Layout, bind, body, everything, nothing

DIMS = {"C": 10, "d": 4}


@pytest.fixture(scope="module")
def params():
    net = nn.ModuleDict({"trunk": nn.Linear(3, 4), "last": nn.BatchNorm1d(4), "head": nn.Linear(4, 10)})
    return bind(net, Layout(net))


@pytest.fixture
def gate(params):
    """One for the slice `body`, measured against what was sent."""
    wire = Wire(down={"w": Field("model", part=body)}, up={"w": Field("model", part=body, against="w")})
    return Gate(wire, params.layout, DIMS, 1000.0)


@pytest.fixture
def down(params):
    return part_message("w", *params.get(body))


@pytest.fixture
def up(params):
    floats, integers = params.get(body)
    return part_message("w", floats + 0.1, integers)


def kind(refusal):
    return refusal and refusal[0]


def test_a_good_upload_passes(gate, up, down):
    assert gate.reason(up, down) is None


@pytest.mark.parametrize("evil", Evil.__args__)
def test_each_evil_has_its_reason(gate, up, down, evil):
    same = {"nan": "nonfinite", "infinite": "nonfinite", "float integers": "type", "more integers": "shape"}
    refusal = gate.reason(spoiled(up, evil), down)
    assert kind(refusal) == same.get(evil, evil)
    assert "'w" in refusal[1] or "'extra'" in refusal[1], "the sentence names the field"


def test_integer_buffers_may_not_be_left_out(gate, up, down):
    del up["w.integers"]
    assert kind(gate.reason(up, down)) == "shape"


@pytest.mark.parametrize("value", [3, 1.5, torch.ones(2, 2), torch.ones(1, dtype=torch.int32)])
def test_integer_buffers_of_another_kind(gate, up, down, value):
    up["w.integers"] = value
    assert kind(gate.reason(up, down)) in ("type", "shape")


@pytest.mark.parametrize("value", [3, "text", None, [1.0]])
def test_a_slice_must_be_a_tensor(gate, up, down, value):
    up.w = value
    assert kind(gate.reason(up, down)) == "type"


def test_the_right_number_of_values_in_another_shape(gate, up, down):
    up.w = up.w.view(2, -1)
    assert kind(gate.reason(up, down)) == "shape"


def test_the_norm_is_that_of_the_update_relative_to_what_was_sent(params):
    wire = Wire(down={"w": Field("m", part=everything)}, up={"w": Field("m", part=everything, against="w")})
    gate = Gate(wire, params.layout, DIMS, 2.0)
    floats, integers = params.get(everything)
    down = part_message("w", floats, integers)
    for factor, rejected in ((2.9, False), (3.1, True), (-0.9, False), (-1.1, True)):
        refusal = gate.reason(part_message("w", floats * factor, integers), down)
        assert kind(refusal) == ("norm" if rejected else None), factor


def test_an_update_of_nothing_is_measured_against_one(params):
    gate = Gate(
        Wire(down={"c": Field("c", rows=("d",))}, up={"c": Field("c", rows=("d",), against="c")}),
        params.layout,
        DIMS,
        5.0,
    )
    down = Message(c=torch.zeros(4))
    assert gate.reason(Message(c=torch.tensor([5.0, 0, 0, 0])), down) is None
    assert kind(gate.reason(Message(c=torch.tensor([5.1, 0, 0, 0])), down)) == "norm"


def test_rows_of_two_dimensions_can_be_measured_too(params):
    field = Field("class means", rows=("C", "d"), against="means")
    gate = Gate(Wire(down={"means": field}, up={"means": field}), params.layout, DIMS, 2.0)
    down = Message(means=torch.ones(10, 4))
    assert gate.reason(Message(means=2 * torch.ones(10, 4)), down) is None
    assert kind(gate.reason(Message(means=9 * torch.ones(10, 4)), down)) == "norm"


def rows_gate(params):
    up = {
        "rows": Field("a row per class", rows=("n", "d")),
        "ids": Field("its class", rows=("n",), kind="integer"),
        "more": Field("may be absent", rows=("n",), optional=True),
        "count": Field("how many", kind="number"),
    }
    return Gate(Wire(up=up), params.layout, DIMS, 1000.0)


def good(n=3, **more):
    return Message(**{"rows": torch.ones(n, 4), "ids": torch.arange(n), "count": n, **more})


def test_optional_fields_and_free_dimensions(params):
    gate = rows_gate(params)
    assert gate.reason(good(), Message()) is None
    assert gate.reason(good(0), Message()) is None
    assert gate.reason(good(7, more=torch.ones(7)), Message()) is None
    assert kind(gate.reason(good(3, ids=torch.arange(4)), Message())) == "shape", "one n in one message"
    assert kind(gate.reason(good(3, more=torch.ones(2)), Message())) == "shape"
    assert kind(gate.reason(good(3, rows=torch.ones(3, 5)), Message())) == "shape", "d is known"
    assert kind(gate.reason(good(3, rows=torch.ones(3)), Message())) == "shape"
    assert kind(gate.reason(good(3, rows=torch.ones(3, 4, 1)), Message())) == "shape"
    assert kind(gate.reason(good(3, ids=torch.ones(3)), Message())) == "type"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (math.nan, "nonfinite"),
        (math.inf, "nonfinite"),
        ("3", "type"),
        (None, "type"),
        (torch.tensor(3), "type"),
        (10**30, "type"),
        (-(10**400), "type"),
        (2**62, None),
        (0.5, None),
    ],
)
def test_numbers(params, value, why):
    assert kind(rows_gate(params).reason(good(3, count=value), Message())) == why


def test_nothing_is_declared_nothing_may_come(params):
    gate = Gate(Wire(), params.layout, DIMS, 1000.0)
    assert gate.reason(Message(), Message()) is None
    assert kind(gate.reason(Message(w=torch.ones(1)), Message())) == "undeclared"


def test_a_slice_of_nothing_passes(params):
    """A method whose model is all personal shares an empty slice."""
    field = Field("nothing", part=nothing, against="w")
    gate = Gate(Wire(down={"w": field}, up={"w": field}), params.layout, DIMS, 2.0)
    assert gate.reason(Message(w=torch.empty(0)), Message(w=torch.empty(0))) is None


def test_values_too_large_for_a_float32_length_are_finite_and_too_long(params):
    field = Field("a row", rows=(3,), against="w")
    gate = Gate(Wire(down={"w": field}, up={"w": field}), params.layout, DIMS, 2.0)
    huge = torch.full((3,), 3e38)
    assert kind(gate.reason(Message(w=huge), Message(w=torch.ones(3)))) == "norm"
    assert kind(gate.reason(Message(w=torch.tensor([1.0, float("nan"), 1.0])), Message(w=torch.ones(3)))) == "nonfinite"
    lone = Gate(Wire(up={"z": Field("a row", rows=(3,))}), params.layout, DIMS, 2.0)
    assert lone.reason(Message(z=huge), Message()) is None


def test_an_update_longer_than_a_block_is_measured_whole(params, monkeypatch):
    monkeypatch.setattr("polyfed.engine.gate.BLOCK", 4)
    field = Field("a row", rows=(10,), against="w")
    gate = Gate(Wire(down={"w": field}, up={"w": field}), params.layout, DIMS, 1.0)
    sent = Message(w=torch.ones(10))
    assert gate.reason(Message(w=torch.ones(10) * 1.9), sent) is None
    late = torch.ones(10)
    late[9] = 1 + 1.1 * 10**0.5  # alone longer than what was sent
    assert "is 3.48 long" in gate.reason(Message(w=late), sent)[1]


def test_the_difference_is_taken_only_where_the_two_lengths_do_not_settle_it(params, monkeypatch):
    field = Field("a row", rows=(4,), against="w")
    wire, sent = Wire(down={"w": field}, up={"w": field}), Message(w=torch.ones(4))
    taken = []
    monkeypatch.setattr(
        "polyfed.engine.gate._distance", lambda one, other: taken.append(1) or float((one - other).norm())
    )
    for norm, value, verdict, looked in (
        (3.0, 1.9, None, 0),  # 3.8 + 2 <= 3 * 2
        (3.0, 2.1, None, 1),  # 4.2 + 2 > 6, and 2.2 long
        (3.0, 4.1, "norm", 1),  # 6.2 long
        (3.0, math.nan, "nonfinite", 1),
    ):
        taken.clear()
        found = Gate(wire, params.layout, DIMS, norm).reason(Message(w=torch.full((4,), value)), sent)
        assert (kind(found) if found else None, len(taken)) == (verdict, looked)
