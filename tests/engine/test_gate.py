"""The gate: declared keys, shapes, types, finite, not too long; a reason means rejected."""

import math

import pytest
import torch
from torch import nn

from own_methods import Evil, spoiled
from polyfed.engine.gate import Gate, Length, Medians, _distance
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


def row_gate(params, norm, wide=4, sent="w"):
    """A gate for one row, measured against what was sent under a name: a row, or several."""
    wire = Wire(down={sent: Field("models", rows=("k", wide))}, up={"w": Field("a row", rows=(wide,), against=sent)})
    return Gate(wire, params.layout, DIMS, norm)


def along(axis, length=1.0):
    row = torch.zeros(4)
    row[axis] = length
    return row


def test_an_update_may_be_exactly_as_long_as_the_limit(params):
    """Here the two lengths settle nothing: 8 + 2 is more than 3 times 2."""
    gate, sent = row_gate(params, 3.0), Message(w=along(0, 2.0)[None])
    assert gate.reason(Message(w=along(0, 8.0)), sent) is None
    assert gate.reason(Message(w=along(0, -4.0)), sent) is None
    assert kind(gate.reason(Message(w=along(0, 8.01)), sent)) == "norm"
    assert kind(gate.reason(Message(w=along(0, -4.01)), sent)) == "norm"


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)], ids=str)
def test_of_several_models_the_nearest_counts_and_so_does_its_length(params, order):
    """Models of length 100, 1 and 10 on three axes: an update may be half as long as the model it started from."""
    models = [along(0, 100.0), along(1, 1.0), along(2, 10.0)]
    gate, sent = row_gate(params, 0.5, sent="models"), Message(models=torch.stack([models[k] for k in order]))
    for start, moved, verdict in (
        (models[0], 49.0, None),
        (models[0], 51.0, "norm"),
        (models[1], 0.4, None),  # far from the others
        (models[1], 0.6, "norm"),  # half of 100 would do
        (models[2], 4.9, None),
        (models[2], 5.1, "norm"),
    ):
        assert kind(gate.reason(Message(w=start + along(3, moved)), sent)) == verdict, (start, moved)


def test_the_sentence_names_the_length_from_the_nearest_model(params):
    sent = Message(models=torch.stack([along(0, 100.0), along(1, 1.0)]))
    refusal = row_gate(params, 0.5, sent="models").reason(Message(w=along(1, 4.0)), sent)
    assert "is 3 long" in refusal[1]
    assert "(0.5)" in refusal[1]


def test_each_model_is_measured_by_its_own_length_one_after_the_other(params):
    """Clients of two clusters pass the same gate in turn: what is remembered of one model is not used for the other."""
    gate = row_gate(params, 2.0)
    long, short = Message(w=along(0, 100.0)[None]), Message(w=along(0, 1.0)[None])
    moved = {id(long): along(0, 250.0), id(short): along(0, 50.0)}
    for _ in range(2):
        assert gate.reason(Message(w=moved[id(long)]), long) is None
        assert kind(gate.reason(Message(w=moved[id(short)]), short)) == "norm"
    assert gate.reason(Message(w=moved[id(long)]), long) is None


def test_a_model_of_the_same_values_elsewhere_in_memory_is_measured_alike(params):
    gate = row_gate(params, 2.0)
    for _ in range(3):
        assert gate.reason(Message(w=along(0, 2.9)), Message(w=along(0, 1.0)[None])) is None
        assert kind(gate.reason(Message(w=along(0, 3.1)), Message(w=along(0, 1.0)[None]))) == "norm"


def test_the_first_of_several_models_is_not_taken_for_all_of_them(params):
    """Both begin at the same place in memory: together they are 5 long, the first alone 3."""
    gate, rows = row_gate(params, 2.0), torch.stack([along(0, 3.0), along(1, 4.0)])
    assert [gate._sent_length(sent) for sent in (rows.reshape(-1), rows[0], rows.reshape(-1))] == [5.0, 3.0, 5.0]


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
        "rows": Field("a row per class", rows=("n", "d"), bound=2.0),
        "ids": Field("its class", rows=("n",), kind="integer", below="C", distinct=True),
        "more": Field("may be absent", rows=("n",), optional=True, bound=2.0),
        "count": Field("how many", kind="number", bound=2.0**62),
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
        (2**63 - 1, "bound"),
        (-1e300, "bound"),
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
    lone = Gate(Wire(up={"z": Field("a row", rows=(3,), bound=3.2e38)}), params.layout, DIMS, 2.0)
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


def test_blocks_of_an_update_add_up_by_their_squares(monkeypatch):
    monkeypatch.setattr("polyfed.engine.gate.BLOCK", 2)
    assert _distance(torch.tensor([3.0, 1.0, 4.0]), torch.tensor([0.0, 1.0, 0.0])) == 5.0


def test_values_have_bounds(params):
    gate = rows_gate(params)
    assert gate.reason(good(3, rows=torch.full((3, 4), -2.0)), Message()) is None
    refusal = gate.reason(good(3, rows=torch.full((3, 4), -2.1)), Message())
    assert refusal == ("bound", "'rows' holds values beyond 2, the most its method allows")


@pytest.mark.parametrize(("ids", "told"), [([0, 5, 10], "0 to 9"), ([-1, 0, 1], "0 to 9"), ([3, 4, 3], "twice")])
def test_class_ids_lie_among_the_classes_and_differ(params, ids, told):
    refusal = rows_gate(params).reason(good(3, ids=torch.tensor(ids)), Message())
    assert kind(refusal) == "range"
    assert "'ids'" in refusal[1]
    assert told in refusal[1]


@pytest.mark.parametrize(("choice", "why"), [(0, None), (1, None), (2, "range"), (-1, "range"), (0.5, "range")])
def test_a_number_may_be_one_of_a_few(params, choice, why):
    wire = Wire(up={"choice": Field("its cluster", kind="number", below=2)})
    assert kind(Gate(wire, params.layout, DIMS, 2.0).reason(Message(choice=choice), Message())) == why


def test_integer_buffers_have_a_range(gate, up, down):
    up["w.integers"] = torch.full_like(up["w.integers"], 2**60)
    assert kind(gate.reason(up, down)) == "range"


def test_a_value_is_measured_by_the_length_of_what_it_is_like(params):
    wire = Wire(down={"w": Field("m", rows=(4,))}, up={"c": Field("a change", rows=("n",), like="w")})
    gate = Gate(wire, params.layout, DIMS, 3.0)
    down, lengths = Message(w=torch.ones(4)), {}
    assert gate.reason(Message(c=torch.tensor([5.9])), down, lengths) is None
    assert lengths["c"] == Length(pytest.approx(5.9), 2.0)
    assert kind(gate.reason(Message(c=torch.tensor([0.0, 6.1])), down)) == "norm"
    assert "'c' is 6.1 long" in gate.reason(Message(c=torch.tensor([-6.1])), down)[1]


def test_lengths_are_those_of_updates(params):
    wire = Wire(down={"models": Field("two models", rows=(2, 4))}, up={"w": Field("one", rows=(4,), against="models")})
    lengths = {}
    sent = torch.stack([torch.zeros(4), torch.full((4,), 3.0)])
    assert (
        Gate(wire, params.layout, DIMS, 3.0).reason(Message(w=torch.full((4,), 2.5)), Message(models=sent), lengths)
        is None
    )
    assert lengths == {"w": Length(1.0, 6.0)}, "from the nearest"


# ---- what is usual


def round_of(*lengths, sent=1.0, name="w"):
    return {client: {name: Length(own, sent)} for client, own in enumerate(lengths)}


def learnt(*lengths):
    medians = Medians(10.0, {})
    medians.learn(round_of(*lengths).values())
    return medians


def test_one_of_four_that_moves_much_further_is_refused_in_the_first_round_already():
    refused = Medians(10.0, {}).too_long(round_of(1.0, 2.0, 21.0, 3.0))
    assert refused == {2: ("median", "'w' moves by 21, 10.5 times as far as is usual (2); gate.median allows 10 times")}
    assert Medians(10.0, {}).too_long(round_of(1.0, 2.0, 20.0, 3.0)) == {}


def test_few_lengths_say_nothing():
    assert Medians(10.0, {}).too_long(round_of(2.0, 900.0, 3.0)) == {}
    assert learnt(1.0, 1.0, 1.0).too_long(round_of(900.0)) == {}
    assert set(learnt(1.0, 1.0, 1.0, 1.0).too_long(round_of(900.0))) == {0}


def test_who_did_not_move_does_not_count():
    assert Medians(10.0, {}).too_long(round_of(0.0, 0.0, 0.0, 0.0, 900.0)) == {}
    assert set(Medians(10.0, {}).too_long(round_of(0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 900.0))) == {7}
    assert learnt(0.0, 0.0, 0.0, 5.0).known == {"w": [5.0]}


def test_where_all_move_further_nobody_is_blamed():
    before = learnt(1.0, 1.0, 1.0, 1.0)
    assert before.too_long(round_of(50.0, 60.0, 70.0, 80.0)) == {}
    assert set(before.too_long(round_of(50.0, 60.0, 70.0, 601.0))) == {3}


def test_an_update_no_longer_than_what_was_sent_passes():
    assert Medians(10.0, {}).too_long(round_of(0.01, 0.01, 0.01, 0.9, sent=1.0)) == {}
    assert set(Medians(10.0, {}).too_long(round_of(0.01, 0.01, 0.01, 0.9, sent=0.8))) == {3}


def test_only_the_last_lengths_are_remembered():
    medians = learnt(*[1.0] * 100, *[5.0] * 60)
    assert medians.known == {"w": [1.0] * 40 + [5.0] * 60}


def test_each_field_has_its_own_usual_length():
    lengths = {k: {"w": Length(1.0, 0.1), "c": Length(100.0, 0.1)} for k in range(4)}
    lengths[4] = {"w": Length(100.0, 0.1), "c": Length(100.0, 0.1)}
    assert set(Medians(10.0, {}).too_long(lengths)) == {4}
