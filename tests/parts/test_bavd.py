"""BAVD by hand: maps, masks, resets, what is uploaded (MuPFL 3.3, eq. 6)."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polyfed.config import Train
from polyfed.data.samples import Samples
from polyfed.message import Memory, Message
from polyfed.methods.sites import Client, Task
from polyfed.models.base import Net, models
from polyfed.params import Layout, body, head
from polyfed.parts.bavd import BAVD, as_rows, layers, listen, mapping, mean_sample, normalised, uploaded_map
from polyfed.parts.losses import cross_entropy
from polyfed.parts.resident import Resident

by_map = partial(BAVD, compare="map")


def fed(layer: BAVD, *steps: tuple[Tensor, float]) -> BAVD:
    """A layer after some training steps of (activations, loss)."""
    layer.train()
    for h, loss in steps:
        layer(h)
        layer.after_step(torch.tensor(loss))
    return layer


def batch(*rows: list[float], shape: tuple[int, ...]) -> Tensor:
    return torch.tensor(rows).view(len(rows), *shape)


# ---- eq. 6


def test_eq_6_the_map_starts_as_the_mean_activation_and_grows_by_the_fall_of_the_loss() -> None:
    first = batch([1.0, 2, 3, 4], [3.0, 2, 1, 0], shape=(1, 2, 2))  # mean 2 2 2 2
    second = batch([0.0, 4, 0, 4], [0.0, 4, 0, 0], shape=(1, 2, 2))  # mean 0 4 0 2
    third = batch([2.0, 0, 2, 0], shape=(1, 2, 2))
    layer = fed(BAVD(), (first, 2.0))
    assert layer.map.tolist() == [[2, 2, 2, 2]]  # lambda = 0
    fed(layer, (second, 1.5))  # psi = 2.0 - 1.5
    assert layer.map.tolist() == [[2, 4, 2, 3]]
    fed(layer, (third, 2.5))  # psi = 1.5 - 2.5: the loss rose, what was active shrinks
    assert layer.map.tolist() == [[0, 4, 0, 3]]


def test_eq_6_as_printed_has_the_other_sign() -> None:
    ones = torch.ones(1, 1, 1, 2)
    assert fed(BAVD(psi="printed"), (ones, 2.0), (ones, 1.5)).map.tolist() == [[0.5, 0.5]]
    assert fed(BAVD(psi="improvement"), (ones, 2.0), (ones, 1.5)).map.tolist() == [[1.5, 1.5]]


def test_a_loss_that_stays_leaves_the_map_at_the_first_activation() -> None:
    draw = torch.Generator().manual_seed(1)
    steps = [(torch.rand(3, 2, 2, 2, generator=draw), 0.7) for _ in range(4)]
    assert torch.equal(fed(BAVD(), *steps).map, steps[0][0].mean(0).flatten(1))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_touches_nothing(bad: float) -> None:
    ones = torch.ones(1, 1, 1, 2)
    layer = fed(BAVD(), (ones, 2.0), (torch.full_like(ones, float("inf")), bad))
    assert layer.map.tolist() == [[1, 1]]
    fed(layer, (ones, 1.0))  # psi against the last loss that was one
    assert layer.map.tolist() == [[2, 2]]
    assert fed(BAVD(), (ones, bad)).map is None


# ---- the mask


def test_the_first_pass_is_not_masked_and_later_ones_by_the_map_of_the_step_before() -> None:
    layer = by_map().train()
    first = batch([1.0, 2, 3, 6], shape=(1, 2, 2))  # mean 3
    assert layer(first) is first
    layer.after_step(torch.tensor(1.0))
    second = batch([9.0, 9, 9, 9], shape=(1, 2, 2))
    assert layer(second).flatten().tolist() == [0, 0, 9, 9]
    layer.after_step(torch.tensor(0.0))
    assert layer.map.tolist() == [[10, 11, 12, 15]]  # the activation before the mask counts


def test_every_channel_has_its_own_mean() -> None:
    h = batch([0.0, 4, 100, 200], shape=(2, 1, 2))
    assert fed(by_map(), (h, 1.0))(h).flatten().tolist() == [0, 4, 0, 200]
    one_for_all = fed(by_map(granularity="spatial"), (h, 1.0))
    assert one_for_all.map.tolist() == [[50, 102]]
    assert one_for_all(h).flatten().tolist() == [0, 4, 0, 200]
    crossed = batch([4.0, 0, 100, 200], shape=(2, 1, 2))
    assert fed(by_map(), (crossed, 1.0))(crossed).flatten().tolist() == [4, 0, 0, 200]
    assert fed(by_map(granularity="spatial"), (crossed, 1.0))(crossed).flatten().tolist() == [0, 0, 0, 200]


@pytest.mark.parametrize(
    ("shape", "granularity", "slices"),
    [
        ((6,), "channel", 1),  # a vector is one slice
        ((6,), "spatial", 1),
        ((3, 4), "channel", 3),  # [C, T]: a slice per channel
        ((3, 4), "spatial", 1),
        ((3, 4, 5), "channel", 3),
        ((3, 4, 5), "spatial", 1),  # [H, W] is one slice, not four
        ((1, 4, 5), "channel", 1),
    ],
)
def test_what_a_slice_is(shape: tuple[int, ...], granularity: Any, slices: int) -> None:
    h = torch.rand(5, *shape, generator=torch.Generator().manual_seed(0))
    layer = fed(by_map(granularity=granularity), (h, 1.0))
    assert layer.map.shape[0] == slices
    seen = h.mean(0)
    if granularity == "spatial" and len(shape) > 1:
        seen = seen.mean(0)
    rows = seen.reshape(slices, -1)
    keep = rows >= rows.mean(1, keepdim=True)
    over = keep.view(*([1] if granularity == "spatial" and len(shape) > 1 else [shape[0]]), *shape[1:])
    assert torch.equal(layer(h), h * over.expand(shape))
    assert 0 < (layer(h) != 0).float().mean() < 1


@pytest.mark.parametrize("granularity", ["channel", "spatial"])
@pytest.mark.parametrize("how", [{"compare": "map"}, {}, {"keep_ratio": 0.5}])
def test_a_sequence_is_an_image_of_height_1(granularity: Any, how: dict[str, Any]) -> None:
    draw = torch.Generator().manual_seed(0)
    steps = [(torch.rand(5, 3, 8, generator=draw), loss) for loss in (2.0, 1.5, 1.7)]
    images = [(h.unsqueeze(2).contiguous(memory_format=torch.channels_last), loss) for h, loss in steps]
    plain, image = (fed(BAVD(granularity=granularity, **how), *each) for each in (steps, images))
    torch.testing.assert_close(image.map, plain.map)
    torch.testing.assert_close(uploaded_map(nn.Sequential(image)), uploaded_map(nn.Sequential(plain)))
    assert torch.equal(image(images[0][0]).squeeze(2), plain(steps[0][0]))


def test_a_vector_is_compared_as_a_whole() -> None:
    h = batch([1.0, 2, 6], shape=(3,))
    assert fed(by_map(), (h, 1.0))(h).tolist() == [[0, 0, 6]]


def test_a_constant_slice_or_a_single_position_is_not_masked() -> None:
    h = batch([3.0, 3, 0, 1], shape=(2, 1, 2))
    assert fed(by_map(), (h, 1.0))(h).flatten().tolist() == [3, 3, 0, 1]
    pixel = torch.tensor([[[[5.0]], [[1.0]]]])
    assert torch.equal(fed(by_map(), (pixel, 1.0))(pixel), pixel)
    assert torch.equal(fed(by_map(keep_ratio=0.5), (h, 1.0))(h), h)
    assert torch.equal(fed(BAVD(), (-h, 1.0))(-h)[0, 0], -h[0, 0])


@pytest.mark.parametrize("options", [{}, {"granularity": "spatial"}, {"keep_ratio": 0.3}])
def test_the_mask_does_not_change_with_the_scale_of_the_map(options: dict[str, Any]) -> None:
    h = torch.rand(4, 3, 5, 5, generator=torch.Generator().manual_seed(2))
    layer = fed(by_map(**options), (h, 1.0))
    before = layer.mask(h)
    layer.map = normalised(layer.map)
    assert torch.equal(layer.mask(h), before)
    layer.map = 7 * layer.map - 3
    assert torch.equal(layer.mask(h), before)
    assert before.view(len(before), -1).any(1).all()  # nothing is masked wholly


def test_a_nearly_constant_slice_is_never_masked_wholly() -> None:
    draw = torch.Generator().manual_seed(3)
    low = torch.full((200, 7), 0.1)
    layer = by_map()
    layer.map = torch.where(torch.rand(200, 7, generator=draw) < 0.5, low, torch.nextafter(low, 2 * low))
    assert (layer.map.mean(1) > layer.map.max(1).values).any()  # rounded beyond its largest value
    assert layer.mask(torch.zeros(1, 200, 7)).any(1).all()


def test_keep_ratio_keeps_exactly_that_share_also_among_equals() -> None:
    h = batch([0.0, 0, 0, 0, 0, 0, 1, 2], shape=(1, 2, 4))
    kept = fed(BAVD(keep_ratio=0.5), (h, 1.0)).mask(h)
    assert int(kept.sum()) == 4
    assert kept.flatten()[-2:].all()
    assert int(fed(BAVD(keep_ratio=0.01), (h, 1.0)).mask(h).sum()) == 1
    assert int(fed(BAVD(keep_ratio=1.0), (h, 1.0)).mask(h).sum()) == 8


@pytest.mark.parametrize(("ratio", "positions", "kept"), [(0.3, 8, 2), (0.45, 8, 4), (0.06, 8, 1), (0.19, 8, 2)])
def test_keep_ratio_keeps_the_nearest_number_and_at_least_one(ratio: float, positions: int, kept: int) -> None:
    h = torch.arange(2.0 * positions).view(1, 2, 1, positions)
    found = fed(BAVD(keep_ratio=ratio), (h, 1.0)).mask(h)
    assert found.sum(-1).flatten().tolist() == [kept, kept]
    assert found[..., -kept:].all()  # the largest


def test_soft_keeps_with_half_the_map_more_than_half() -> None:
    layer = fed(BAVD(soft=True), (batch([0.0, 1, 2, 4], shape=(1, 2, 2)), 1.0))  # normalised 0, 1/4, 1/2, 1
    h = torch.full((4000, 1, 2, 2), 3.0)
    torch.manual_seed(1)
    found = layer(h)
    assert set(found.unique().tolist()) == {0.0, 3.0}
    assert (found != 0).float().mean(0).flatten().tolist() == pytest.approx([0.5, 0.625, 0.75, 1], abs=0.03)
    torch.manual_seed(1)
    assert torch.equal(layer(h), found)  # the draw follows the seed of the work
    assert not torch.equal(layer(h), found)
    one_for_all = fed(BAVD(soft=True, granularity="spatial"), (batch([0.0, 4, 0, 4], shape=(2, 1, 2)), 1.0))
    drawn = one_for_all(torch.ones(4000, 2, 1, 2)).mean(0).flatten().tolist()
    assert drawn == pytest.approx([0.5, 1, 0.5, 1], abs=0.03)
    vector = fed(BAVD(soft=True), (batch([0.0, 1], shape=(2,)), 1.0))(torch.ones(4000, 2))
    assert vector.mean(0).tolist() == pytest.approx([0.5, 1], abs=0.03)


def test_soft_leaves_a_constant_slice_whole() -> None:
    h = batch([3.0, 3, 0, 1], shape=(2, 1, 2)).expand(500, 2, 1, 2)
    found = fed(BAVD(soft=True), (h, 1.0))(h)
    assert (found[:, 0] == 3).all()
    assert not torch.equal(found[:, 1], h[:, 1] * 2)


def test_inverse_divides_by_the_share_that_was_kept() -> None:
    h = batch([1.0, 2, 3, 6], shape=(1, 2, 2))  # mean 3
    ones = torch.ones_like(h)
    assert fed(by_map(inverse=True), (h, 1.0))(ones).flatten().tolist() == [0, 0, 2, 2]  # a half
    first = batch([0.0, 1, 2, 5], shape=(2, 1, 2))  # both thresholds are 0.5
    masked = fed(BAVD(inverse=True), (first, 1.0))(batch([0.4, 0.6, 3, 0.1], [0.5, 0, 0, 9], shape=(2, 1, 2)))
    assert masked.flatten().tolist() == pytest.approx([0, 1.2, 6, 0, 1, 0, 0, 18])  # four of eight
    nothing = fed(BAVD(inverse=True), (first, 1.0))(torch.full((2, 2, 1, 2), 0.1))
    assert (nothing == 0).all()  # none is kept, and nothing is divided by zero
    soft = fed(BAVD(soft=True, inverse=True), (h, 1.0))(torch.full((100, 1, 2, 2), 2.0))
    assert float(soft.mean()) == pytest.approx(2.0, rel=1e-5)


def test_comparing_the_activation_itself() -> None:
    first = batch([0.0, 1, 2, 5], shape=(2, 1, 2))  # normalised 0 1 and 0 1: both means are 0.5
    h = batch([0.4, 0.6, 3, 0.1], [0.5, 0, 0, 9], shape=(2, 1, 2))
    masked = fed(BAVD(), (first, 1.0))(h)
    assert masked.flatten().tolist() == pytest.approx([0, 0.6, 3, 0, 0.5, 0, 0, 9])
    wide = fed(BAVD(granularity="spatial"), (first, 1.0))(h)
    assert torch.equal(wide, masked)
    vector = fed(BAVD(), (batch([0.0, 1, 5], shape=(3,)), 1.0))  # mean of 0, .2, 1
    assert vector(batch([0.3, 0.5, 0.2], shape=(3,))).tolist() == [pytest.approx([0, 0.5, 0])]


def test_what_is_masked_has_no_gradient() -> None:
    layer = fed(by_map(), (batch([1.0, 2, 6], shape=(3,)), 1.0))
    h = torch.ones(2, 3, requires_grad=True)
    layer(h).sum().backward()
    assert h.grad.tolist() == [[0, 0, 1]] * 2


def test_in_evaluation_it_is_the_identity_and_remembers_nothing() -> None:
    h = torch.rand(4, 3, 5, 5)
    layer = fed(BAVD(), (torch.rand(4, 3, 5, 5), 1.0))
    before = layer.map.clone()
    layer.eval()
    assert layer(h) is h
    layer.after_step(torch.tensor(0.0))
    assert torch.equal(layer.map, before)


# ---- in a model


def convolutional() -> Net:
    trunk = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU())
    last = nn.Sequential(nn.Flatten(), nn.Linear(48, 6), nn.ReLU())
    return Net(trunk, last, nn.Linear(6, 3), ("trunk.1", "last.2"))


def client(net: Any = None, memory: Memory | None = None, n: int = 10, **train: Any) -> Client:
    torch.manual_seed(0)
    resident = Resident(net or (lambda: listen(convolutional())))
    resident.reset()
    x, y = torch.randn(n, 1, 4, 4, generator=torch.Generator().manual_seed(4)), torch.arange(n) % 3
    task = Task(classes=3, train=Train(**{"batch": 5, "lr": 0.1} | train))
    counts = torch.bincount(y, minlength=3)
    return Client(0, resident, task, 1, Samples.of(x, y), counts, Message(), memory or Memory())


@pytest.mark.parametrize("name", ["cnn-bn", "resnet8", "har-cnn", "mlp"])
def test_models_keep_the_names_and_values_of_their_weights(name: str) -> None:
    shape = (9, 64) if name == "har-cnn" else (1, 16, 16)
    model = models.build({"name": name, "width": 0.5}, "model")
    torch.manual_seed(3)
    plain = model.build(shape, 4)
    torch.manual_seed(3)
    carrying = listen(model.build(shape, 4))
    assert Layout(carrying).digest() == Layout(plain).digest()
    assert layers(carrying)
    assert len(layers(carrying)) == len(carrying.listens)
    x = torch.randn(3, *shape)
    assert torch.equal(carrying.eval()(x), plain.eval()(x))
    carrying.train()
    carrying(x)
    for layer in layers(carrying):
        layer.after_step(torch.tensor(1.0))
    assert all(layer.map is not None for layer in layers(carrying))
    assert not torch.equal(carrying(x), plain.train()(x))  # masked


def test_plain_dropout_stands_in_the_same_places() -> None:
    plain, control = convolutional(), listen(convolutional(), nn.Dropout)
    assert Layout(control).digest() == Layout(plain).digest()
    control.load_state_dict(plain.state_dict())
    assert layers(control) == []
    assert uploaded_map(control).shape == (0,)
    places = {name for name, m in control.named_modules() if isinstance(m, nn.Dropout)}
    assert places == {f"{name}.bavd" for name in plain.listens}
    x, seen = torch.randn(200, 1, 4, 4), []
    assert torch.equal(control.eval()(x), plain.eval()(x))
    control.train().head.register_forward_pre_hook(lambda m, given: seen.append(given[0]))
    control(x)
    plain.head.register_forward_pre_hook(lambda m, given: seen.append(given[0]))
    plain(x)
    assert float((seen[0] == 0).float().mean()) > float((seen[1] == 0).float().mean()) + 0.1


def test_a_place_that_is_a_sequence_is_masked_once() -> None:
    net = Net(nn.Sequential(nn.Sequential(nn.Linear(4, 5), nn.ReLU())), nn.Identity(), nn.Linear(5, 2), ("trunk.0",))
    listen(net).train()
    calls = []
    layers(net)[0].register_forward_hook(lambda *_: calls.append(1))
    net(torch.randn(2, 4))
    assert len(calls) == 1


def test_a_copy_has_a_map_of_its_own() -> None:
    net = listen(convolutional())
    other = copy.deepcopy(net).train()
    other(torch.rand(2, 1, 4, 4))
    assert layers(other)[0]._seen is not None
    assert layers(net)[0]._seen is None


def test_a_new_work_begins_without_maps() -> None:
    one = client()
    one.fit(cross_entropy, epochs=1)
    assert all(layer.map is not None for layer in layers(one.model))
    one.resident.reset()
    assert all(layer.map is None and layer.loss is None for layer in layers(one.model))


def test_frozen_parts_neither_mask_nor_learn() -> None:
    one = client()
    one.fit(cross_entropy, epochs=1)
    maps = [layer.map.clone() for layer in layers(one.model)]
    x, _ = one.data.take(torch.arange(10))
    expected = one.model.eval().features(x).detach()
    seen = []
    one.fit(lambda b: seen.append(b.features.detach()) or cross_entropy(b), steps=1, batch=10, train=head)
    assert torch.equal(seen[0].sort(0).values, expected.sort(0).values)
    assert all(torch.equal(layer.map, m) for layer, m in zip(layers(one.model), maps, strict=True))
    one.fit(cross_entropy, steps=1, train=body)
    assert not torch.equal(layers(one.model)[0].map, maps[0])


def test_a_fit_is_masked_from_its_second_step_on() -> None:
    losses: dict[bool, list[float]] = {True: [], False: []}
    for with_bavd in losses:
        one = client(None if with_bavd else convolutional)

        def loss(b: Any, here: list[float] = losses[with_bavd]) -> Tensor:
            value = cross_entropy(b)
            here.append(float(value.detach()))
            return value

        one.fit(loss, steps=2)
    assert losses[True][0] == losses[False][0]
    assert losses[True][1] != losses[False][1]


# ---- when maps start again


def starts(one: Client, **fit: Any) -> list[bool]:
    """For each step, whether the map was empty when it began."""
    empty = []

    def loss(b: Any) -> Tensor:
        empty.append(layers(one.model)[0].map is None)
        return cross_entropy(b)

    one.fit(loss, **fit)
    return empty


def test_each_epoch_starts_again_and_leaves_the_last_one() -> None:
    one = client()
    with mapping(one.model, "epoch", one.memory) as order:
        assert starts(one, epochs=2.5, batches=order) == [True, False, True, False, True]
    assert layers(one.model)[0].map is not None
    with mapping(client().model, "round", Memory()) as order:
        assert starts(client(), epochs=2, batches=order) == [True, False, False, False]


def test_the_batches_are_the_same_whenever_maps_start() -> None:
    seen: dict[str, list[Tensor]] = {"round": [], "epoch": [], "never": []}
    for reset, here in seen.items():
        one = client()

        def loss(b: Any, here: list[Tensor] = here) -> Tensor:
            here.append(b.index)
            return cross_entropy(b)

        with mapping(one.model, reset, one.memory) as order:  # type: ignore[arg-type]
            one.fit(loss, epochs=2, batches=order)
    for other in ("epoch", "never"):
        assert all(torch.equal(a, b) for a, b in zip(seen["round"], seen[other], strict=True))


def test_a_skipped_lone_sample_does_not_shift_the_epochs() -> None:
    def net() -> Net:
        trunk = nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.BatchNorm1d(4), nn.ReLU())
        return listen(Net(trunk, nn.Identity(), nn.Linear(4, 3), ("trunk.3",)))

    one = client(net, n=11)  # batches of 5, 5 and 1
    with mapping(one.model, "epoch", one.memory) as order:
        assert starts(one, epochs=2, batches=order) == [True, False, True, False]
    assert one.tally.skipped_batches == 2


def test_maps_that_never_start_again_go_on_in_the_next_round() -> None:
    one, true = client(), []
    with mapping(one.model, "never", one.memory) as order:
        one.fit(lambda b: true.append(cross_entropy(b)) or true[-1], epochs=2, batches=order)
    kept = Memory.decode(one.memory.encode())
    before, loss = kept.map_0, float(true[-1].detach())
    assert loss != float(true[0].detach())
    assert float(kept.map_loss_0) == float(kept.map_loss_1) == loss  # what is stored is the loss of the last step
    again = client(memory=kept)
    seen = []
    layers(again.model)[0].register_forward_pre_hook(lambda m, given: seen.append(given[0].detach().mean(0).flatten(1)))
    losses = []
    with mapping(again.model, "never", again.memory) as order:
        assert torch.equal(layers(again.model)[0].map, before)
        again.fit(lambda b: losses.append(cross_entropy(b)) or losses[-1], steps=1, batches=order)
    expected = before + (loss - float(losses[0].detach())) * seen[0]
    assert torch.allclose(again.memory.map_0, expected)
    assert not torch.equal(again.memory.map_0, before)
    assert len(client().memory) == 0


# ---- what is uploaded


def test_the_uploaded_map_is_the_mean_over_channels_from_0_to_1_layer_after_layer() -> None:
    net = nn.Sequential(BAVD(), BAVD(), BAVD(granularity="spatial"), BAVD())
    fed(net[0], (batch([0.0, 2, 4, 4], shape=(2, 1, 2)), 1.0))  # channels [0 2] and [4 4]: mean [2 3]
    fed(net[1], (batch([1.0, 2, 5], shape=(3,)), 1.0))
    fed(net[2], (batch([0.0, 2, 4, 4], shape=(2, 1, 2)), 1.0))
    assert uploaded_map(net).tolist() == pytest.approx([0, 1, 0, 0.25, 1, 0, 1])
    assert uploaded_map(nn.Sequential(BAVD())).shape == (0,)
    fed(net[3], (torch.ones(1, 2, 1, 1), 1.0))
    assert uploaded_map(net).tolist()[-1] == 0  # one position: nothing to tell


def test_maps_of_another_length_count_as_zero() -> None:
    a, b = torch.tensor([1.0, 0.5]), torch.tensor([0.0, 1.0])
    rows = as_rows([a, torch.zeros(0), b, torch.ones(7)])
    assert rows.tolist() == [[1, 0.5], [0, 0], [0, 1], [0, 0]]
    assert as_rows([torch.zeros(0), torch.zeros(0)]) is None


@pytest.mark.parametrize("channels", [1, 3])
def test_the_mean_over_a_batch_is_the_same_for_every_layout(channels: int) -> None:
    h = torch.randn(4, channels, 2, 5, generator=torch.Generator().manual_seed(0))
    for layout in (torch.contiguous_format, torch.channels_last):
        torch.testing.assert_close(mean_sample(h.contiguous(memory_format=layout)), h.mean(0))
    torch.testing.assert_close(mean_sample(h[:, :, 0, 0]), h[:, :, 0, 0].mean(0))
