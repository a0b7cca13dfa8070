"""A model as a flat vector: layout, live views, slices, arithmetic."""

import copy
import itertools
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import by_hand
from polyfed.models.base import Net
from polyfed.params import (
    Layout,
    Params,
    Slice,
    bind,
    bn,
    body,
    buffers,
    everything,
    head,
    last,
    named,
    nothing,
    trunk,
    weights,
)

ATOMS = [
    everything,
    nothing,
    trunk,
    last,
    head,
    body,
    bn,
    weights,
    buffers,
    named("*.weight"),
    named("head.bias", "*.norm1.*"),
]


def conv_net() -> Net:
    torch.manual_seed(0)
    first = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
    second = nn.Sequential(nn.Conv2d(4, 5, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Net(first, second, nn.Linear(5, 3))


@pytest.fixture(params=[lambda: by_hand.tiny_net(bn=True), conv_net], ids=["mlp-bn", "conv-bn"])
def make(request: pytest.FixtureRequest) -> Callable[[], Net]:
    return request.param


def slices() -> st.SearchStrategy[Slice]:
    """Random slices: atoms under | & ~."""
    return st.recursive(
        st.sampled_from(ATOMS),
        lambda inner: st.one_of(
            st.tuples(inner, inner).map(lambda two: two[0] | two[1]),
            st.tuples(inner, inner).map(lambda two: two[0] & two[1]),
            inner.map(lambda one: ~one),
        ),
        max_leaves=5,
    )


# ---- layout


def test_weights_come_first_then_float_buffers_and_integers_lie_beside() -> None:
    layout = Layout(by_hand.tiny_net(bn=True))
    kinds = [e.kind for e in layout.floats]
    assert kinds == sorted(kinds, key=["weight", "buffer"].index)
    assert [e.name for e in layout.floats[:2]] == ["trunk.fc1.weight", "trunk.fc1.bias"]
    assert [e.name for e in layout.floats if e.kind == "buffer"] == [
        "trunk.norm1.running_mean",
        "trunk.norm1.running_var",
        "last.norm2.running_mean",
        "last.norm2.running_var",
    ]
    assert [e.name for e in layout.integers] == ["trunk.norm1.num_batches_tracked", "last.norm2.num_batches_tracked"]
    ends = [e.stop for e in layout.floats]
    assert [e.start for e in layout.floats] == [0, *ends[:-1]]
    n_weights = (4 * 6 + 6) + 12 + (6 * 5 + 5) + 10 + (5 * 3 + 3)
    assert (layout.n_weights, layout.size, layout.n_integers) == (n_weights, n_weights + 12 + 10, 2)


def test_bn_is_recognised_by_its_module_and_not_by_a_name() -> None:
    net = by_hand.tiny_net(bn=True)
    assert {e.name for e in Layout(net).entries if e.bn} == {
        f"{place}.{what}"
        for place in ("trunk.norm1", "last.norm2")
        for what in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    }
    grouped = Net(nn.Linear(4, 4), nn.GroupNorm(2, 4), nn.Linear(4, 3))
    assert not any(e.bn for e in Layout(grouped).entries)


def test_layouts_agree_between_processes_and_differ_between_models() -> None:
    torch.manual_seed(0)
    one = Layout(by_hand.tiny_net())
    torch.manual_seed(1)
    assert Layout(by_hand.tiny_net()).digest() == one.digest()  # values do not matter
    assert (
        len({one.digest(), Layout(by_hand.tiny_net(bn=True)).digest(), Layout(by_hand.tiny_net(classes=4)).digest()})
        == 3
    )


# ---- live views


def test_binding_keeps_every_value_and_every_output(make: Callable[[], Net]) -> None:
    net = make()
    plain = copy.deepcopy(net)
    params = bind(net, Layout(net))
    for name, value in plain.state_dict().items():
        assert torch.equal(net.state_dict()[name], value), name
    x = torch.randn(6, 3, 5, 5) if make is conv_net else torch.randn(6, 4)
    for mode in (True, False):  # in training too: the running statistics must move in the vector
        out, expected = net.train(mode)(x), plain.train(mode)(x)
        torch.testing.assert_close(out, expected)
    tracked = [e for e in params.layout.floats if e.name.endswith("running_mean")]
    for entry in tracked:
        torch.testing.assert_close(entry.view(params.flat), plain.state_dict()[entry.name])
    assert params.integers.tolist() == [1] * len(tracked)


def test_the_vector_is_the_model() -> None:
    net = by_hand.tiny_net()
    params = bind(net, Layout(net))
    x = torch.randn(5, 4)
    before = net(x)
    params.weights[-3:] += 1.0  # the head's bias
    torch.testing.assert_close(net(x), before + 1.0)
    with torch.no_grad():
        net.trunk.fc1.weight.zero_()
    assert params.flat[:24].eq(0).all()
    assert not params.flat[24:].eq(0).all()


def test_convolution_kernels_lie_channels_last_in_the_vector() -> None:
    net = conv_net()
    before = net.trunk[0].weight.detach().clone()
    params = bind(net, Layout(net))
    assert net.trunk[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(net.trunk[0].weight, before)
    assert torch.equal(params.flat[: before.numel()], before.permute(0, 2, 3, 1).flatten())


# ---- slices


def test_slices_are_merged_ranges() -> None:
    layout = Layout(by_hand.tiny_net(bn=True))
    n = layout.n_weights
    assert layout.ranges(everything) == ((0, layout.size),)
    assert layout.ranges(weights) == ((0, n),)
    assert layout.ranges(buffers) == ((n, layout.size),)
    assert layout.ranges(head) == ((n - 18, n),)
    assert layout.ranges(body) == ((0, n - 18), (n, layout.size))
    assert layout.ranges(trunk) == ((0, 42), (n, n + 12))
    assert layout.ranges(last) == ((42, n - 18), (n + 12, layout.size))
    assert layout.ranges(bn) == ((30, 42), (42 + 35, n - 18), (n, layout.size))
    assert layout.ranges(named("trunk.fc1.weight")) == ((0, 24),)
    assert layout.ranges(named("trunk.fc1.weight", "head.bias")) == ((0, 24), (n - 3, n))
    assert layout.ranges(nothing) == ()
    assert layout.ranges(body, integers=True) == ((0, 2),)
    assert layout.ranges(last, integers=True) == ((1, 2),)
    assert layout.ranges(head, integers=True) == ()
    assert (layout.length(head), layout.length(bn), layout.length(last, integers=True)) == (18, 44, 1)


def test_combined_slices_are_set_operations() -> None:
    layout = Layout(by_hand.tiny_net(bn=True))
    n = layout.n_weights
    assert layout.ranges(~head) == layout.ranges(body)
    assert layout.ranges(head | body) == ((0, layout.size),)
    assert layout.ranges(body & weights) == ((0, n - 18),)
    assert layout.ranges(last & bn & weights) == ((77, 87),)
    assert layout.ranges(~(trunk | last)) == layout.ranges(head)
    assert layout.ranges(head & body) == ()


def test_everything_and_nothing_stay_recognisable() -> None:
    """A method asks `personal == nothing`: what is nothing must say so however it was made."""
    for one in (head, body, nothing, everything):
        assert (one | nothing) == (nothing | one) == one
        assert (one & everything) == (everything & one) == one
        assert (one & nothing) == (nothing & one) == nothing
        assert (one | everything) == (everything | one) == everything
    assert ~nothing == everything
    assert ~everything == nothing
    assert head != body


def test_a_name_pattern_is_never_taken_for_a_slice_of_that_name() -> None:
    layout = Layout(by_hand.tiny_net())
    assert layout.length(head) == 18
    assert layout.length(named("head")) == 0  # no tensor has that name
    assert named("head") != head
    assert named("a", "b") != named("a or b")
    both = named("head.weight", "head.bias")
    assert layout.length(~both) == layout.n_weights - 18
    assert layout.length(both & trunk) == 0


@given(part=slices())
def test_ranges_are_what_the_test_says(part: Slice) -> None:
    layout = Layout(by_hand.tiny_net(bn=True))
    for integers, entries in ((False, layout.floats), (True, layout.integers)):
        mine = {i for e in entries if part.test(e) for i in range(e.start, e.stop)}
        ranges = layout.ranges(part, integers)
        assert {i for a, b in ranges for i in range(a, b)} == mine
        assert all(b < c for (_, b), (c, _) in itertools.pairwise(ranges))  # sorted, neighbours merged
        assert layout.length(part, integers) == len(mine)


# ---- arithmetic


def numbered(layout: Layout) -> Params:
    return Params(layout, torch.arange(layout.size, dtype=torch.float32), torch.arange(layout.n_integers))


@given(part=slices())
def test_what_is_got_can_be_put_and_touches_nothing_else(part: Slice) -> None:
    layout = Layout(by_hand.tiny_net(bn=True))
    source = numbered(layout)
    floats, integers = source.get(part)
    assert (len(floats), len(integers)) == (layout.length(part), layout.length(part, integers=True))
    target = Params(layout, torch.full((layout.size,), -1.0), torch.full((layout.n_integers,), -1))
    target.put(part, floats, integers)
    other = target.get(~part)
    assert all(torch.equal(a, b) for a, b in zip(target.get(part), (floats, integers), strict=True))
    assert all(bool((values == -1).all()) for values in other)


@given(part=slices())
def test_without_integers_a_slice_keeps_its_own(part: Slice) -> None:
    target = numbered(Layout(by_hand.tiny_net(bn=True)))
    floats = -1 - target.get(part)[0]
    target.put(part, floats)
    assert torch.equal(target.get(part)[0], floats)
    assert torch.equal(target.get(~part)[0], numbered(target.layout).get(~part)[0])
    assert target.integers.tolist() == [0, 1]


def test_what_is_got_is_a_copy() -> None:
    params = numbered(Layout(by_hand.tiny_net(bn=True)))
    for part in (everything, head, body, nothing):
        floats, integers = params.get(part)
        floats.fill_(-5)
        integers.fill_(-5)
    assert torch.equal(params.flat, numbered(params.layout).flat)
    assert torch.equal(params.integers, numbered(params.layout).integers)
    other = params.copy()
    other.flat.zero_()
    other.integers.fill_(9)
    assert params.flat.sum() > 0
    assert params.integers.tolist() == [0, 1]


def test_values_that_do_not_fill_the_slice_are_refused() -> None:
    params = numbered(Layout(by_hand.tiny_net(bn=True)))
    _, integers = params.get(head)
    for wrong in (1, 17, 19):
        with pytest.raises(ValueError, match="18"):
            params.put(head, torch.zeros(wrong), integers)
    with pytest.raises(ValueError, match="2 numbers"):
        params.put(everything, params.flat.clone(), torch.zeros(0, dtype=torch.int64))


def test_mix_is_a_convex_combination_and_keeps_its_own_integers() -> None:
    layout = Layout(by_hand.tiny_net(bn=True))
    mine, other = numbered(layout), numbered(layout)
    other.flat.mul_(3).add_(1)
    other.integers.add_(100)
    mixed = mine.mix(other, 0.25)
    torch.testing.assert_close(mixed.flat, 0.25 * other.flat + 0.75 * mine.flat)
    assert mixed.integers.tolist() == [0, 1]
    assert torch.equal(mine.mix(other, 0.0).flat, mine.flat)  # the ends are exact
    assert torch.equal(mine.mix(other, 1.0).flat, other.flat)
    mixed.integers.add_(1)
    assert mine.integers.tolist() == [0, 1]


def test_set_copies_in_place() -> None:
    net = by_hand.tiny_net(bn=True)
    live = bind(net, Layout(net))
    other = numbered(live.layout)
    live.set(other)
    assert net.head.bias.tolist() == other.flat[live.layout.n_weights - 3 : live.layout.n_weights].tolist()
    assert int(net.last.norm2.num_batches_tracked) == 1
    other.flat.zero_()
    assert live.flat.sum() > 0


def test_weights_and_buffers_are_views() -> None:
    params = numbered(Layout(by_hand.tiny_net(bn=True)))
    n = params.layout.n_weights
    params.weights.zero_()
    params.buffers.fill_(2)
    assert params.flat[:n].eq(0).all()
    assert params.flat[n:].eq(2).all()
    assert len(params.buffers) == 22


def test_the_digest_sees_every_bit() -> None:
    params = numbered(Layout(by_hand.tiny_net(bn=True)))
    seen = {params.digest()}
    for change in (
        lambda p: p.flat[:1].add_(1e-45),
        lambda p: p.flat[-1:].mul_(1 + 2**-23),
        lambda p: p.flat[:2].copy_(p.flat[:2].flip(0)),
        lambda p: p.integers[1:].add_(1),
    ):
        other = params.copy()
        change(other)
        seen.add(other.digest())
    assert len(seen) == 5
    assert params.copy().digest() == params.digest()
