"""What models have in common is computed once, and nobody's answer changes by it."""

import copy

import pytest
import torch
from torch import Tensor, nn

from polyfed.data.samples import Samples
from polyfed.measure.counts import confusions
from polyfed.measure.shared import SharedFeatures, Table, digest
from polyfed.models.base import Ensemble, Net
from polyfed.parts.experts import Experts


class Counting(nn.Linear):
    """Knows how many rows went through it and its copies."""

    rows: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.rows.append(len(x))
        return super().forward(x)


@pytest.fixture
def samples() -> Samples:
    draw = torch.Generator().manual_seed(3)
    return Samples.of(torch.randn(50, 6, generator=draw), torch.randint(0, 4, (50,), generator=draw))


@pytest.fixture
def net() -> Net:
    torch.manual_seed(1)
    Counting.rows.clear()
    norm = nn.BatchNorm1d(5, track_running_stats=False)  # an answer depends on its batch
    return Net(nn.Sequential(Counting(6, 5), norm), nn.Sequential(nn.Linear(5, 5), nn.ReLU()), nn.Linear(5, 4))


def changed(net: Net, name: str) -> Net:
    other = copy.deepcopy(net)
    with torch.no_grad():
        other.get_parameter(name).mul_(1.5).add_(0.1)
    return other


def tables(predictor: nn.Module, samples: Samples, shared: SharedFeatures | None) -> list[list]:
    only = torch.tensor([1, 3])
    return [table.tolist() for table in confusions(predictor, samples, 4, 16, [None, only], shared)]


def said(predictor: nn.Module, samples: Samples, shared: SharedFeatures) -> Tensor:
    with torch.inference_mode():
        return torch.cat(list(shared.logits(predictor, samples, 16)))


def alone(predictor: nn.Module, samples: Samples) -> Tensor:
    """Bit for bit what it says with nothing shared."""
    return said(predictor, samples, SharedFeatures(0))


def test_two_heads_on_one_body_run_it_once_and_answer_with_the_same_bits(net, samples):
    shared, other = SharedFeatures(), changed(net, "head.weight")
    for each in (net, other, net):
        assert torch.equal(said(each, samples, shared), alone(each, samples))
    Counting.rows.clear()
    fresh = SharedFeatures()
    assert tables(net, samples, fresh) != tables(other, samples, fresh)
    assert sum(Counting.rows) == 50


@pytest.mark.parametrize("name", ["trunk.0.weight", "trunk.1.bias", "last.0.weight"])
def test_another_body_is_never_taken_for_this_one(net, samples, name):
    shared, other = SharedFeatures(), changed(net, name)
    for each in (net, other, net):
        assert torch.equal(said(each, samples, shared), alone(each, samples))
    assert digest(net.trunk, net.last) != digest(other.trunk, other.last)


def test_the_same_values_in_another_structure_are_another_body(net):
    """A ReLU holds no values, but it makes others."""
    assert digest(net.trunk, nn.Sequential(net.last[0])) != digest(net.trunk, net.last)


def test_counts_are_the_same_with_and_without(net, samples):
    shared = SharedFeatures()
    for each in (net, changed(net, "head.weight")):
        assert tables(each, samples, shared) == tables(each, samples, None)


def test_experts_share_their_trunk(net, samples):
    shared, groups = SharedFeatures(), [[0, 1], [2, 3]]
    for scale in (1.0, 2.0):
        experts = [changed(net, "last.0.weight"), changed(net, "head.bias")]
        answer = Experts(net, experts, groups, torch.full((4,), scale), 0.5, False).eval()
        assert torch.equal(said(answer, samples, shared), alone(answer, samples))
    assert sum(Counting.rows) == 50 + 2 * 50  # once for both that share, and each alone


def test_networks_inside_an_ensemble_are_found(net, samples):
    class Mean(Ensemble):
        def __init__(self, *nets: Net):
            super().__init__()
            self.nets = nn.ModuleList(nets)

        def forward(self, x: Tensor) -> Tensor:
            return sum(each(x) for each in self.nets) / len(self.nets)

    both = Mean(net, changed(net, "head.weight")).eval()
    assert torch.equal(said(both, samples, SharedFeatures()), alone(both, samples))
    Counting.rows.clear()
    said(both, samples, SharedFeatures())
    assert sum(Counting.rows) == 50


def test_an_evaluation_forgets_the_one_before(net, samples):
    shared = SharedFeatures()
    for what in (("evaluate", 1), ("evaluate", 1), ("evaluate", 2)):
        shared.begin(what)
        tables(net, samples, shared)
    assert sum(Counting.rows) == 2 * 50


def test_other_samples_and_other_batches_are_asked_anew(net, samples):
    shared, fewer = SharedFeatures(), samples.only(torch.arange(50) < 20)
    assert torch.equal(said(net, samples, shared)[:16], said(net, fewer, shared)[:16])
    assert torch.equal(said(net, fewer, shared), alone(net, fewer))
    with torch.inference_mode():
        mine, theirs = (torch.cat(list(s.logits(net, samples, 25))) for s in (shared, SharedFeatures(0)))
    assert torch.equal(mine, theirs)


def test_it_holds_no_more_than_it_may_and_drops_what_was_used_least_recently(net, samples):
    one = 50 * 5 * 4  # bytes of one body's features
    shared, other, third = SharedFeatures(2 * one), changed(net, "last.0.bias"), changed(net, "trunk.0.bias")
    for each in (net, other, net, third):  # the third takes the place of the second
        said(each, samples, shared)
    Counting.rows.clear()
    said(net, samples, shared)
    assert Counting.rows == []
    assert torch.equal(said(other, samples, shared), alone(other, samples))
    assert shared._held <= 2 * one


def test_what_is_too_large_is_kept_in_part(net, samples):
    shared = SharedFeatures(2 * 16 * 5 * 4)  # two batches
    for _ in range(2):
        assert torch.equal(said(net, samples, shared), alone(net, samples))
    assert shared._held == shared.most


@pytest.mark.parametrize("turn", [lambda x: x, lambda x: x.to(memory_format=torch.channels_last)])
def test_outputs_lie_in_one_piece_of_memory_as_they_came(turn):
    images = Samples.of(torch.zeros(5, 1), torch.zeros(5, dtype=torch.int64))
    kept, came = Table(images), [turn(torch.arange(n * 24.0).view(n, 2, 3, 4)) for n in (3, 2)]
    shared = SharedFeatures()
    for shared._at, output in zip((0, 3), came, strict=True):
        assert shared._keep(kept, output) is output
    first, second = kept.outputs[0], kept.outputs[3]
    assert torch.equal(first, came[0])
    assert torch.equal(second, came[1])
    assert (first.stride(), second.stride()) == (came[0].stride(), came[1].stride())
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    assert shared._held == kept.size == 5 * 24 * 4


@pytest.mark.parametrize("odd", [torch.zeros(6, 3).t(), torch.zeros(1, 6).expand(3, 6), torch.zeros(3, 12)[:, :6]])
def test_what_does_not_lie_row_by_row_is_not_kept(odd):
    kept, shared = Table(Samples.of(torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64))), SharedFeatures()
    assert shared._keep(kept, odd) is odd
    assert (kept.outputs, shared._held) == ({}, 0)
    shared._keep(kept, torch.zeros(1, 6))
    shared._at = 1
    shared._keep(kept, torch.zeros(6, 2).t())  # lies otherwise than the one before
    assert list(kept.outputs) == [0]


def test_nothing_is_left_in_the_model(net, samples):
    before = set(vars(net)), set(vars(net.trunk))
    tables(net, samples, SharedFeatures())
    assert (set(vars(net)), set(vars(net.trunk))) == before
