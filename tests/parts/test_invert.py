"""Inputs that show what a model has seen: its layers' statistics, the extraction, and the answers to it."""

import copy
import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from polyfed.data.samples import Samples
from polyfed.models.base import Net
from polyfed.params import Params
from polyfed.parts.invert import (
    Goal,
    Knowledge,
    activation_layers,
    activation_statistics,
    bn_layers,
    chosen_channels,
    extract,
    knowledge_of,
    probabilities,
    responses,
    statistics,
    statistics_loss,
    watching,
)
from polyfed.parts.resident import Resident


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# ---- DistFL: what a model has seen


class Odd(nn.Module):
    """Layers in another order than they are called, one called twice, one never."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.unused, self.norm = nn.Linear(4, 2), nn.Linear(7, 3), nn.BatchNorm1d(4)
        self.first = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.first(x)))


def a_bn_net() -> nn.Sequential:
    torch.manual_seed(2)
    conv = nn.Conv2d(1, 4, 3, padding=1)
    net = nn.Sequential(conv, nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6))
    net.append(nn.Linear(6, 3))
    net.train()
    for i in range(30):  # running statistics of some data
        net(2 * random(32, 1, 4, 4, seed=i) + 1)
    return net.eval().requires_grad_(False)


def test_layers_that_know_something() -> None:
    net = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3, track_running_stats=False), nn.GroupNorm(1, 3))
    assert bn_layers(net) == [net[0]]
    assert activation_layers(nn.Sequential(nn.Conv1d(2, 3, 1), nn.ReLU(), nn.Linear(3, 2)))


def test_the_channels_with_the_largest_gamma() -> None:
    layer = nn.BatchNorm1d(5)
    layer.weight.data = torch.tensor([0.1, -3.0, 0.5, 2.0, -0.2])
    assert chosen_channels(layer, 0.4, absolute=False).tolist() == [3, 2]
    assert chosen_channels(layer, 0.4, absolute=True).tolist() == [1, 3]
    assert chosen_channels(layer, 0.5, absolute=False).tolist() == [3, 2, 0]  # ceil(2.5)
    assert len(chosen_channels(layer, 0.01, absolute=False)) == 1
    assert len(chosen_channels(nn.BatchNorm1d(100), 0.07, absolute=False)) == 7
    assert chosen_channels(nn.BatchNorm1d(3, affine=False), 0.1, absolute=False).tolist() == [0, 1, 2]


@pytest.mark.parametrize("shape", [(6, 3), (6, 3, 5), (6, 3, 5, 2)])
def test_statistics_are_over_batch_and_space(shape: tuple[int, ...]) -> None:
    x = random(*shape)
    mean, var = statistics(x)
    for c in range(3):
        assert float(mean[c]) == pytest.approx(float(x[:, c].mean()), abs=1e-6)
        assert float(var[c]) == pytest.approx(float(x[:, c].var(unbiased=False)), abs=1e-6)
    assert statistics(torch.ones(1, 2))[1].tolist() == [0, 0]


def test_eqs_2_and_4_by_hand() -> None:
    """BN on vectors: X has means (2, 0, 1) and variances (1, 4, 0)."""
    norm = nn.BatchNorm1d(3).eval()
    norm.running_mean, norm.running_var = torch.tensor([0.0, 3.0, 1.0]), torch.tensor([2.0, 4.0, 5.0])
    norm.weight.data = torch.tensor([1.0, 0.5, 0.8])
    x = torch.tensor([[1.0, -2.0, 1.0], [3.0, 2.0, 1.0]])

    def loss(ratio: float) -> float:
        knowledge = knowledge_of(norm, [], ratio, absolute=False)
        with watching(list(knowledge)) as seen:
            norm(x)
        return float(statistics_loss(seen, knowledge))

    assert loss(1.0) == pytest.approx(math.sqrt(4 + 9 + 0) + math.sqrt(1 + 0 + 25))  # eq. 2
    assert loss(0.5) == pytest.approx(math.sqrt(4 + 0) + math.sqrt(1 + 25))  # eq. 4: channels 0 and 2
    norm.running_var[1] = 7.0
    assert loss(0.5) == pytest.approx(math.sqrt(4 + 0) + math.sqrt(1 + 25)), "channel 1 does not count"
    assert loss(1.0) == pytest.approx(math.sqrt(4 + 9 + 0) + math.sqrt(1 + 9 + 25))


def test_eq_2_is_a_sum_over_layers_read_at_their_inputs() -> None:
    net, x = a_bn_net(), random(10, 1, 4, 4)
    knowledge = knowledge_of(net, [], 1.0, absolute=False)
    with watching(list(knowledge)) as seen:
        net(x)
    expected = 0.0
    for layer, before in ((net[1], net[0](x)), (net[5], net[:5](x))):
        mean, var = statistics(before)
        expected += float((mean - layer.running_mean).norm() + (var - layer.running_var).norm())
    assert float(statistics_loss(seen, knowledge)) == pytest.approx(expected, rel=1e-5)
    assert not net[1]._forward_hooks  # nobody watches afterwards


def loss_of(net: nn.Module, x: Tensor, knowledge: dict[nn.Module, Goal]) -> float:
    with watching(list(knowledge)) as seen:
        net(x)
    return float(statistics_loss(seen, knowledge))


def test_extraction_really_moves_the_inputs_towards_the_statistics() -> None:
    net, noise = a_bn_net(), random(40, 1, 4, 4, seed=50)
    weights = copy.deepcopy(net.state_dict())
    knowledge = knowledge_of(net, [], 1.0, absolute=False)
    found = extract(net, noise, knowledge, steps=150, lr=0.1)
    assert loss_of(net, found, knowledge) < loss_of(net, noise, knowledge) / 15
    assert (found != noise).all()  # a gradient reached every input
    assert abs(float(found.mean()) - 1) < 0.35  # the data had mean 1 and variance 4
    assert float(found.var()) == pytest.approx(4, rel=0.35)
    assert all(torch.equal(v, weights[k]) for k, v in net.state_dict().items())
    assert torch.equal(noise, random(40, 1, 4, 4, seed=50))


def test_the_best_inputs_are_kept() -> None:
    net, noise = a_bn_net(), random(20, 1, 4, 4, seed=50)
    knowledge = knowledge_of(net, [], 0.5, absolute=False)
    losses = [loss_of(net, extract(net, noise, knowledge, steps, 3.0), knowledge) for steps in (0, 1, 2, 5, 20)]
    assert all(b <= a for a, b in pairwise(losses))  # though a step of 3 overshoots
    assert torch.equal(extract(net, noise, knowledge, 0, 0.1), noise)
    assert torch.equal(extract(net, noise, {}, 10, 0.1), noise)


def test_a_model_that_gives_no_numbers_leaves_the_noise() -> None:
    net, noise = a_bn_net(), random(4, 1, 4, 4)
    net[0].weight.fill_(float("nan"))
    assert torch.equal(extract(net, noise, knowledge_of(net, [], 0.5, absolute=False), 3, 0.1), noise)


@pytest.mark.parametrize("shape", [(9, 16), (12,)])
def test_extraction_for_sequences_and_vectors(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    first = nn.Conv1d(9, 4, 3) if len(shape) == 2 else nn.Linear(12, 4)
    net = nn.Sequential(first, nn.BatchNorm1d(4)).eval().requires_grad_(False)
    net[1].running_mean.fill_(1.5)
    knowledge, noise = knowledge_of(net, [], 1.0, absolute=False), random(30, *shape)
    found = extract(net, noise, knowledge, 100, 0.1)
    assert found.shape == noise.shape
    assert loss_of(net, found, knowledge) < loss_of(net, noise, knowledge) / 10


def test_layers_are_told_apart_whatever_the_order_of_their_calls() -> None:
    torch.manual_seed(0)
    net, x = Odd().eval(), random(8, 6)
    with watching(activation_layers(net)) as seen:
        net(x)
    assert set(seen) == {net.first, net.out}
    assert torch.allclose(seen[net.first][0], net.first(x).mean(0))
    assert torch.allclose(seen[net.out][0], net(x).mean(0))


# ---- eq. 5


@pytest.fixture
def resident() -> Resident:
    torch.manual_seed(0)
    return Resident(lambda: Net(nn.Identity(), nn.Identity(), nn.Linear(2, 2)))


def model_with(resident: Resident, weight: list[list[float]]) -> Params:
    params = resident.initial.copy()
    params.flat.zero_()
    params.flat[:4] = torch.tensor(weight).flatten()
    return params


def test_eq_5_the_responses_of_each_model_by_hand(resident: Resident) -> None:
    frozen = resident.frozen(resident.initial, augmented=False)
    models = [model_with(resident, w) for w in ([[1.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]])]
    one, other = responses(frozen, iter(models), torch.tensor([[math.log(3), 0.0], [0.0, 30.0]]), 0)
    assert one.dtype == torch.float64
    assert one[0].tolist() == pytest.approx([0.75, 0.25])
    assert one[1, 0] == 1e-8  # clamped: exp(-30) is less
    assert other.tolist() == [[0.5, 0.5]] * 2
    soft, even = responses(frozen, models, torch.tensor([[2.0, 0.0], [0.0, 4.0]]), 0.5)
    size = 0.5 * math.sqrt(2.5)  # centred they are ±1 and ±2
    assert soft[:, 0].tolist() == pytest.approx([1 / (1 + math.exp(-2 / size)), 1 / (1 + math.exp(4 / size))])
    assert even.tolist() == [[0.5, 0.5]] * 2  # no size to divide by


@pytest.mark.parametrize("softness", [0.0, 2.0])
def test_responses_of_boosted_and_of_broken_models(resident: Resident, softness: float) -> None:
    frozen = resident.frozen(resident.initial, augmented=False)
    inputs = torch.tensor([[1.0, 2.0]])
    boosted, broken = responses(
        frozen,
        [model_with(resident, [[1e6, 0], [0, 1e6]]), model_with(resident, [[3e38, 3e38], [3e38, 3e38]])],
        inputs,
        softness,
    )
    assert torch.isfinite(boosted).all()
    assert boosted[0, 0] == (1e-8 if softness == 0 else pytest.approx(1 / (1 + math.e)))  # ±1 over 2 when softened
    assert not torch.isfinite(broken).all()  # finite weights, answers that are not


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e30])
def test_softened_responses_know_nothing_of_scale_or_of_what_is_added_to_a_row(scale: float) -> None:
    logits = random(6, 4).double()
    plain = probabilities(logits, 2.0)
    assert torch.allclose(probabilities(scale * logits, 2.0), plain, atol=1e-12)
    assert torch.allclose(probabilities(logits + torch.arange(6)[:, None], 2.0), plain, atol=1e-12)
    assert not torch.allclose(probabilities(logits * torch.arange(1, 7)[:, None], 2.0), plain)  # rows keep their sizes
    assert torch.allclose(plain.sum(1), torch.ones(6).double())


# ---- without BN


def a_plain_net() -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(12, 2))


def test_activation_statistics_are_those_of_all_samples_at_once() -> None:
    net, samples = a_plain_net().train(), Samples.of(random(50, 1, 4, 4), torch.zeros(50, dtype=torch.int64))
    found = activation_statistics(net, samples, batch=16)  # 16, 16, 16 and 2
    assert found.shape == (2, 5)
    with torch.no_grad():
        x, _ = samples.take(torch.arange(50))
        outs = net[0](x), net.eval()(x)
    expected = torch.cat([torch.stack(statistics(out)) for out in outs], 1)
    assert torch.allclose(found, expected, atol=1e-5)


def test_activation_statistics_of_odd_models_and_of_rows_of_rows() -> None:
    samples = Samples.of(random(9, 6), torch.zeros(9, dtype=torch.int64))
    assert activation_statistics(Odd(), samples).shape == (2, 2 + 3 + 4)  # the layer that never ran has zeros
    sequences = Samples.of(random(9, 5, 6), torch.zeros(9, dtype=torch.int64))
    layer = nn.Linear(6, 4)  # [B, T, 6] -> [B, T, 4]: channels are last
    found = activation_statistics(nn.Sequential(layer), sequences)
    assert torch.allclose(found[0], layer(random(9, 5, 6)).mean((0, 1)), atol=1e-5)
    one = activation_statistics(nn.Sequential(layer), Samples.of(random(1, 6), torch.zeros(1, dtype=torch.int64)))
    assert one[1].tolist() == [0] * 4


def test_knowledge_from_uploaded_statistics() -> None:
    net = a_plain_net().eval().requires_grad_(False)
    a, b, wrong = random(2, 5).abs(), random(2, 5, seed=1).abs(), random(2, 7)
    knowledge = knowledge_of(net, [a, wrong, b], 0.5, absolute=False)
    goals = list(knowledge.values())
    assert list(knowledge) == [net[0], net[4]]
    assert torch.allclose(goals[0].mean, (a + b)[0, :3] / 2)
    assert torch.allclose(goals[1].var, (a + b)[1, 3:] / 2)
    assert [len(g.channels) for g in goals] == [3, 2]  # no gamma: all channels
    assert knowledge_of(net, [wrong], 0.5, absolute=False) == {}
    assert knowledge_of(net, [], 0.5, absolute=False) == {}
    found = extract(net, noise := random(30, 1, 4, 4), knowledge, 200, 0.1)
    assert loss_of(net, found, knowledge) < loss_of(net, noise, knowledge) / 3


def test_real_statistics_beat_uploaded_ones() -> None:
    net = a_bn_net()
    assert list(knowledge_of(net, [random(2, 13)], 0.5, absolute=False)) == [net[1], net[5]]


# ---- in chunks


def by_autograd_alone(model: nn.Module, start: Tensor, knowledge: Knowledge, steps: int, lr: float) -> Tensor:
    """The extraction on all inputs at once, with autograd through the statistics."""
    x, best, kept = start.clone().requires_grad_(True), math.inf, start
    optimiser = torch.optim.Adam([x], lr=lr)
    for _ in range(steps + 1):
        with watching(list(knowledge)) as seen:
            model(x)
        loss = statistics_loss(seen, knowledge)
        if float(loss.detach()) < best:
            best, kept = float(loss.detach()), x.detach().clone()
        (x.grad,) = torch.autograd.grad(loss, [x])
        optimiser.step()
    return kept


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("norm", [False, True])
def test_extraction_in_chunks_is_that_on_all_inputs_at_once(norm: bool, inplace: bool) -> None:
    torch.manual_seed(0)
    middle = [nn.BatchNorm2d(4), nn.ReLU(inplace)] if norm else [nn.ReLU(inplace)]
    model = nn.Sequential(nn.Conv2d(1, 4, 3), *middle, nn.Flatten(), nn.Linear(144, 5)).eval().requires_grad_(False)
    layers = bn_layers(model) or activation_layers(model)
    knowledge = {
        m: Goal(random(4 if m is not model[-1] else 5), torch.tensor(2.0), torch.tensor([0, 2])) for m in layers
    }
    start = random(11, 1, 8, 8)
    found = extract(model, start, knowledge, steps=6, lr=0.1)
    plain = copy.deepcopy(model)
    twins = dict(zip(model.modules(), plain.modules(), strict=True))
    for layer in plain.modules():
        if isinstance(layer, nn.ReLU):
            layer.inplace = False
    expected = by_autograd_alone(plain, start, {twins[m]: goal for m, goal in knowledge.items()}, steps=6, lr=0.1)
    assert float((found - start).abs().max()) > 0.3, "the inputs moved"
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
