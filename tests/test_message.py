"""What crosses the wire and what is kept: round trips, bytes, and refusing what is not ours."""

import json
import math
import multiprocessing
import pickle
import pickletools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

import by_hand
from polyfed.errors import UsageError
from polyfed.message import Bundle, Field, Memory, Message, State, Wire, digest_of
from polyfed.params import Params, head

LAYOUT = by_hand.resident(bn=True).layout
WORDS = {name for name in dir(Bundle) if hasattr(Bundle, name)}


def names() -> st.SearchStrategy[str]:
    return st.text("abcdefxyz_.0123456789", min_size=1, max_size=8).filter(lambda n: n not in WORDS)


def tensors() -> st.SearchStrategy[torch.Tensor]:
    shape = st.lists(st.integers(0, 3), max_size=3)
    floats = st.floats(width=32)
    whole = st.integers(-(2**63), 2**63 - 1)

    def fill(shape: list[int], each: st.SearchStrategy[Any], dtype: torch.dtype) -> st.SearchStrategy[torch.Tensor]:
        n = math.prod(shape)
        return st.lists(each, min_size=n, max_size=n).map(lambda v: torch.tensor(v, dtype=dtype).reshape(shape))

    return shape.flatmap(lambda s: st.one_of(fill(s, floats, torch.float32), fill(s, whole, torch.int64)))


def whole_models() -> st.SearchStrategy[Params]:
    return st.integers(0, 2**31).map(_model)


def _model(seed: int) -> Params:
    generator = torch.Generator().manual_seed(seed)
    floats = torch.randn(LAYOUT.size, generator=generator)
    return Params(LAYOUT, floats, torch.randint(0, 2**40, (LAYOUT.n_integers,), generator=generator))


def numbers() -> st.SearchStrategy[int | float]:
    return st.one_of(st.integers(-(2**70), 2**70), st.floats())


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Params):
        return isinstance(other, Params) and one.digest() == other.digest() and other.layout is LAYOUT
    if isinstance(one, torch.Tensor):
        bits = one.view(torch.int32) if one.dtype == torch.float32 else one
        others = other.view(torch.int32) if other.dtype == torch.float32 else other
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(bits, others)
    return type(one) is type(other) and (one == other or (math.isnan(one) and math.isnan(other)))


# ---- round trips


@given(content=st.dictionaries(names(), st.one_of(tensors(), numbers(), whole_models()), max_size=5))
def test_what_is_encoded_is_decoded_bit_for_bit(content: dict[str, Any]) -> None:
    found = Memory.decode(Memory(**content).encode(), LAYOUT)
    assert isinstance(found, Memory)
    assert set(found) == set(content)
    for name, value in content.items():
        assert same(value, found[name]), name
    assert found.nbytes == Memory(**content).nbytes
    assert digest_of(found.encode()) == digest_of(Memory.decode(found.encode(), LAYOUT).encode())


def test_a_view_is_sent_as_its_values() -> None:
    table = torch.arange(12.0).reshape(3, 4)
    found = Message.decode(Message(column=table[:, 1], turned=torch.arange(6.0).reshape(2, 3).T).encode())
    assert found.column.tolist() == [1, 5, 9]
    assert found.turned.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_nothing_of_the_senders_can_be_changed_through_a_decoded_message() -> None:
    mine = torch.zeros(3)
    found = Message.decode(Message(w=mine).encode())
    found.w.fill_(7)
    assert mine.tolist() == [0, 0, 0]


def test_it_reads_like_an_object_and_like_a_mapping() -> None:
    bundle = Message(w=torch.zeros(2), times=3)
    bundle["w.integers"] = torch.ones(1, dtype=torch.int64)
    bundle.more = 2.5
    assert bundle["times"] == bundle.times == bundle.get("times") == 3
    assert (bundle.get("absent"), bundle.get("absent", 4)) == (None, 4)
    assert list(bundle) == ["w", "times", "w.integers", "more"]
    assert len(bundle) == 4
    assert "w" in bundle
    assert "v" not in bundle
    del bundle.more
    with pytest.raises(AttributeError, match="there is w, times"):
        _ = bundle.more


@pytest.mark.parametrize("name", ["items", "get", "encode", "decode", "tensors", "numbers", "nbytes", "__class__"])
def test_a_value_cannot_take_the_place_of_a_word_of_the_bundle(name: str) -> None:
    """Else a foreign message with a tensor named `items` would break whoever reads it."""
    with pytest.raises(ValueError, match=name):
        Bundle(**{name: 1})
    with pytest.raises(ValueError, match=name):
        setattr(Bundle(), name, 1)
    blob = save({name: torch.zeros(1)}, metadata={"numbers": "{}"})
    with pytest.raises(ValueError, match=name):
        Message.decode(blob)


def test_a_value_may_be_named_self() -> None:
    assert Message.decode(save({"self": torch.zeros(1)}, metadata={"numbers": "{}"}))["self"].tolist() == [0]


# ---- bytes


def test_bytes_are_4_per_float_and_8_per_integer_or_number() -> None:
    model = Params(LAYOUT, torch.zeros(LAYOUT.size), torch.zeros(LAYOUT.n_integers, dtype=torch.int64))
    bundle = Message(w=torch.zeros(2, 5), ids=torch.zeros(3, dtype=torch.int64), n=7, loss=0.5)
    assert bundle.nbytes == 4 * 10 + 8 * 3 + 8 + 8
    bundle["model"] = model
    assert bundle.nbytes == 80 + 4 * LAYOUT.size + 8 * LAYOUT.n_integers
    assert Message().nbytes == 0


# ---- garbage


def header(content: Any, body: bytes = b"") -> bytes:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return len(text).to_bytes(8, "little") + text + body


GARBAGE = {
    "nothing": b"",
    "a few bytes": b"abc",
    "text": b"this is not a bundle at all, but long enough to be one",
    "zeros": bytes(64),
    "a huge header": (2**63).to_bytes(8, "little") + b"{}",
    "not utf-8": header(b"\xff\xfe{}"),
    "a list": header([1, 2]),
    "a number": header(5),
    "no metadata": header({}),
    "metadata is a list": header({"__metadata__": []}),
    "numbers are missing": header({"__metadata__": {}}),
    "numbers are no text": header({"__metadata__": {"numbers": 5}}),
    "numbers are a number": header({"__metadata__": {"numbers": "5"}}),
    "numbers are a list": header({"__metadata__": {"numbers": "[1, 2]"}}),
    "a number is a text": header({"__metadata__": {"numbers": '{"a": "text"}'}}),
    "a number is a list": header({"__metadata__": {"numbers": '{"a": [1]}'}}),
    "a number is null": header({"__metadata__": {"numbers": '{"a": null}'}}),
    "nested without end": header({"__metadata__": {"numbers": "[" * 100_000}}),
    "a tensor beyond the end": header(
        {"__metadata__": {"numbers": "{}"}, "w": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}, bytes(8)
    ),
    "a shape that does not fit": header(
        {"__metadata__": {"numbers": "{}"}, "w": {"dtype": "F32", "shape": [9], "data_offsets": [0, 8]}}, bytes(8)
    ),
    "an unknown type": header(
        {"__metadata__": {"numbers": "{}"}, "w": {"dtype": "X9", "shape": [2], "data_offsets": [0, 8]}}, bytes(8)
    ),
    "someone else's safetensors": save({"w": torch.zeros(2)}),
    "a model without its integers": save({"w#flat": torch.zeros(LAYOUT.size)}, metadata={"numbers": "{}"}),
    "a model of another layout": save(
        {"w#flat": torch.zeros(3), "w#integers": torch.zeros(0, dtype=torch.int64)}, metadata={"numbers": "{}"}
    ),
}


@pytest.mark.parametrize("blob", GARBAGE.values(), ids=GARBAGE.keys())
def test_what_is_not_a_bundle_is_one_value_error(blob: bytes) -> None:
    with pytest.raises(ValueError, match="not a bundle of tensors"):
        Message.decode(blob, LAYOUT)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(blob: bytes) -> None:
    with pytest.raises(ValueError, match="not a bundle"):
        Message.decode(blob, LAYOUT)


@given(st.data())
def test_every_truncation_is_refused(data: st.DataObject) -> None:
    blob = Message(w=torch.arange(5.0), n=3).encode()
    with pytest.raises(ValueError, match="not a bundle"):
        Message.decode(blob[: data.draw(st.integers(0, len(blob) - 1))])


class Trap:
    """Unpickling it would raise the alarm."""

    sprung = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _spring, ()


def _spring() -> None:
    Trap.sprung = True


def test_a_pickle_is_refused_and_executes_nothing() -> None:
    evil = pickle.dumps(Trap())
    for blob in (evil, header(evil), header({"__metadata__": {"numbers": evil.hex()}})):
        with pytest.raises(ValueError, match="not a bundle"):
            Message.decode(blob)
    assert not Trap.sprung
    pickle.loads(evil)
    assert Trap.sprung  # it would have worked


@pytest.mark.parametrize("value", ["text", [1, 2], None, {"a": 1}])
def test_only_tensors_and_numbers_are_encoded(value: Any) -> None:
    with pytest.raises(TypeError, match="'strange' is neither a tensor nor a number"):
        Message(w=torch.zeros(1), strange=value).encode()


# ---- between our own processes


def _answer(pipe: Any) -> None:
    message = pipe.recv()
    message.w.mul_(2)
    message.n = message.n + 1
    pipe.send(message)


def test_between_processes_it_travels_as_bytes() -> None:
    message = Message(w=torch.arange(4.0), ids=torch.tensor([3]), n=1)
    how = message.__reduce__()
    assert how[0] == Message.decode
    assert [type(part) for part in how[1]] == [bytes]
    words = {arg for op, arg, _ in pickletools.genops(pickle.dumps(message)) if "UNICODE" in op.name}
    assert not any("torch" in word for word in words)  # no tensor, storage or file descriptor is pickled
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe()
    process = context.Process(target=_answer, args=(theirs,))
    process.start()
    mine.send(message)
    found = mine.recv()
    process.join()
    assert isinstance(found, Message)
    assert found.w.tolist() == [0, 2, 4, 6]
    assert (found.n, found.ids.tolist()) == (2, [3])
    assert message.w.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", [Bundle, Message, Memory, State])
def test_pickling_keeps_the_kind(kind: type[Bundle]) -> None:
    assert type(pickle.loads(pickle.dumps(kind(n=1)))) is kind


# ---- wire


def test_a_wire_with_more_fields_leaves_the_first_as_it_was() -> None:
    base = Wire(down={"w": Field("model", part=head)}, up={"w": Field("trained", part=head, against="w")})
    control = Field("control", rows=("P",), like="w")
    more = base.also(down={"c": control}, up={"w": Field("mine", part=head, against="w"), "c": control})
    assert set(base.down) == set(base.up) == {"w"}
    assert set(more.down) == set(more.up) == {"w", "c"}
    assert (more.down["w"].what, more.up["w"].what) == ("model", "mine")
    assert base.also() == base


def test_whether_sums_are_enough_is_asked_of_the_uploads_only() -> None:
    summed, alone = Field("s", bound=1.0, summed=True), Field("a", bound=1.0)
    assert Wire().only_sums
    assert Wire(up={"a": summed}).only_sums
    assert Wire(down={"a": alone}, up={"b": summed}).only_sums
    assert not Wire(up={"a": summed, "b": alone}).only_sums
    assert Wire(up={"a": summed, "b": alone}).summing("b").only_sums


def test_a_wire_is_described_in_words() -> None:
    wire = Wire(
        down={"w": Field("the shared model", part=head)},
        up={
            "g": Field("class gradients", rows=("n", "C", 3), optional=True, like="w"),
            "ids": Field("classes", rows=("n",), kind="integer", below="C"),
            "choice": Field("its cluster", kind="number", below=2),
        },
    )
    assert wire.describe() == {
        "down": {"w": "the shared model: the slice 'head'"},
        "up": {
            "g": "class gradients: float rows [n, C, 3], may be absent",
            "ids": "classes: integer rows [n]",
            "choice": "its cluster: a number",
        },
    }


@pytest.mark.parametrize(
    ("field", "told"),
    [
        (Field("rows", rows=("n",)), "sets no limit to 'x'.*against=, like= or bound="),
        (Field("a model", part=head), "sets no limit to 'x'"),
        (Field("a number", kind="number"), "sets no limit to 'x'"),
        (Field("ids", rows=("n",), kind="integer"), "sets no limit to 'x'.*below="),
        (Field("rows", rows=("n",), against="c"), "measures 'x' by 'c', which is not always sent"),
        (Field("rows", rows=("n",), like="maybe"), "measures 'x' by 'maybe', which is not always sent"),
    ],
)
def test_what_clients_send_must_have_a_limit(field: Field, told: str) -> None:
    down = {"w": Field("model", part=head), "maybe": Field("rows", rows=("n",), optional=True)}
    with pytest.raises(UsageError, match=told):
        Wire(down=down, up={"x": field})
    Wire(down={**down, "x": field})


# ---- names a memory keeps for itself


@pytest.mark.parametrize("name", ["personal", "personal.integers"])
def test_a_method_cannot_use_the_name_of_the_personal_slice(name: str) -> None:
    memory = Memory()
    with pytest.raises(ValueError, match=f"cannot keep '{name}'.*choose another"):
        memory[name] = torch.zeros(2)
    assert len(memory) == 0
    State()[name] = 1  # the server has no such slice


def test_the_personal_slice_travels_with_the_memory() -> None:
    memory = Memory(times=2)
    assert memory.personal_slice is None
    memory.keep_personal(torch.ones(3), torch.tensor([7]))
    found = Memory.decode(memory.encode())
    floats, integers = found.personal_slice
    assert (floats.tolist(), integers.tolist(), found.times) == ([1, 1, 1], [7], 2)
    halved = Message(personal=torch.ones(3)).encode()
    with pytest.raises(ValueError, match="not a bundle"):
        Memory.decode(halved)


def test_a_memory_has_no_value_named_like_one_of_its_methods() -> None:
    with pytest.raises(ValueError, match="cannot be named 'keep_personal'"):
        Memory(keep_personal=1)


def test_a_bundle_on_another_device_has_everything_there():
    model = Params(LAYOUT, torch.zeros(LAYOUT.size), torch.zeros(LAYOUT.n_integers, dtype=torch.int64))
    memory = Memory(hpm=model, times=3)
    memory.keep_personal(torch.zeros(2), torch.zeros(0, dtype=torch.int64))
    moved = memory.to(torch.device("meta"))
    assert {tensor.device.type for tensor in moved.tensors().values()} == {"meta"}
    assert list(moved) == list(memory)
    assert moved.times == 3
    assert memory.to(torch.device("cpu")) is memory
