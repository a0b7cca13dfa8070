"""Confusion counts against a loop over samples."""

import pytest
import torch
from torch import nn

from polyfed.data.samples import Samples
from polyfed.measure import counts
from polyfed.measure.counts import confusion, confusions


@pytest.fixture
def samples():
    draw = torch.Generator().manual_seed(3)
    return Samples.of(torch.randn(57, 6, generator=draw), torch.randint(0, 4, (57,), generator=draw))


@pytest.fixture
def predictor():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4))


def naive(predictor, samples, allowed):
    table = torch.zeros(4, 4, dtype=torch.int64)
    predictor.eval()
    for i in range(len(samples)):
        x, y = samples.take(torch.tensor([i]))
        logits = predictor(x)[0].detach()
        answer = max(allowed, key=lambda c: float(logits[c]))
        table[int(y), answer] += 1
    return table


@pytest.mark.parametrize("batch", [1, 10, 57, 1000])
def test_counts_are_those_of_a_loop_whatever_the_batch(predictor, samples, batch):
    assert torch.equal(confusion(predictor, samples, 4, batch), naive(predictor, samples, range(4)))


@pytest.mark.parametrize("rows", [1, 20, 57])
def test_counts_do_not_depend_on_how_many_rows_are_counted_at_once(predictor, samples, monkeypatch, rows):
    monkeypatch.setattr(counts, "AT_ONCE", rows)
    assert torch.equal(confusion(predictor, samples, 4, 10), naive(predictor, samples, range(4)))


@pytest.mark.parametrize("own", [[2], [0, 3], [1, 2, 3]])
def test_masked_answers_are_the_best_of_the_allowed_classes(predictor, samples, own):
    plain, masked = confusions(predictor, samples, 4, 16, [None, torch.tensor(own)])
    assert torch.equal(plain, naive(predictor, samples, range(4)))
    assert torch.equal(masked, naive(predictor, samples, own))
    others = [c for c in range(4) if c not in own]
    assert masked[:, others].sum() == 0


def test_measuring_puts_a_model_into_eval_mode_and_leaves_no_gradient(predictor, samples):
    predictor.train()
    before = [b.clone() for b in predictor.buffers()]
    confusion(predictor, samples, 4, 8)
    assert all(torch.equal(a, b) for a, b in zip(before, predictor.buffers(), strict=True))
    assert all(p.grad is None for p in predictor.parameters())


def test_no_samples_no_counts(predictor, samples):
    assert confusion(predictor, samples.only(torch.zeros(57, dtype=torch.bool)), 4, 8).sum() == 0


def test_labels_outside_the_classes_are_not_counted(samples):
    marked = Samples.of(samples.pool.x, torch.where(torch.arange(57) < 7, 255, samples.y))
    table = confusion(nn.Linear(6, 4), marked, 4, 16)
    assert table.sum() == 50


def test_a_tie_goes_to_the_first_class(samples):
    class Same(nn.Module):
        def forward(self, x):
            return torch.zeros(len(x), 4)

    assert confusion(Same(), samples, 4, 16)[:, 1:].sum() == 0
    assert confusions(Same(), samples, 4, 16, [torch.tensor([1, 3])])[0][:, 1].sum() == 57


@pytest.mark.parametrize(("label", "counted"), [(3, 57), (4, 50), (5, 50)])
def test_the_first_label_that_is_no_class_is_the_number_of_classes(samples, label, counted):
    marked = Samples.of(samples.pool.x, torch.where(torch.arange(57) < 7, label, samples.y))
    table = confusion(nn.Linear(6, 4), marked, 4, 16)
    assert table.sum() == counted
    assert table.sum(1).tolist()[:3] == torch.bincount(marked.y, minlength=6)[:3].tolist()


def test_a_background_learnt_as_a_further_class_is_no_answer(samples):
    class Says(torch.nn.Module):
        def forward(self, x):
            return torch.tensor([[1.0, 2.0, 9.0]]).expand(len(x), 3)

    table = confusion(Says(), samples, 2, 4)
    assert table[:, 1].sum() == table.sum() == int((samples.y < 2).sum()) > 0
