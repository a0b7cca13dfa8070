"""MAP (Li et al. 2023, algorithm 1): restricted softmax for what is aggregated, an inherited model for what stays."""

from collections.abc import Callable

import pytest
import torch
from riding import HOLDS, Ride, spoiling

import by_hand
from polyfed.message import Memory
from polyfed.methods.map import MAP
from polyfed.params import everything

Riding = Callable[..., Ride]


def test_algorithm_1_by_its_lines() -> None:
    """Lines 2-6: n_1 steps of RS; 7: the upload; 8-12: n_2 steps of eq. 13, one optimiser; 14: eq. 10."""
    train = {"batch": 3, "lr": 0.1, "momentum": 0.9, "epochs": 4}
    home, data = by_hand.resident(bn=True), by_hand.some(labels=[0, 1] * 5)
    hpm = by_hand.as_params(home, home.initial.flat + 0.1)

    def fresh():
        return by_hand.client(home, data, memory=Memory(hpm=hpm.copy(), times=1), train=train, rounds=4)

    method = MAP(alpha=0.3, lam=0.4)
    client = fresh()
    client.fit(lambda batch: method.loss(client, batch), steps=8)
    sent = home.params.get(everything)
    client.fit(method.teach(client), steps=8, go_on=True)
    personal = home.params.copy()
    client = fresh()
    upload = method.train(client)
    assert torch.equal(upload.w, sent[0])
    assert torch.equal(upload["w.integers"], sent[1])
    assert torch.equal(home.params.flat, personal.flat)
    assert torch.equal(client.memory.hpm.flat, personal.mix(hpm, 0.9 * 1 / 4).flat)
    assert client.memory.times == 2


def test_between_the_stages_momentum_and_batches_go_on_unless_told_otherwise() -> None:
    made = []
    for reset in (False, True):
        home = by_hand.resident()
        client = by_hand.client(home, by_hand.some(12), train={"batch": 3, "momentum": 0.9, "epochs": 2})
        upload = MAP(reset_between_stages=reset).train(client)
        made.append((upload.w.clone(), home.params.flat.clone()))
    assert torch.equal(made[0][0], made[1][0])  # the first stage is the same
    assert not torch.equal(made[0][1], made[1][1])


def test_both_stages_are_clipped() -> None:
    """Four steps to the upload and four from there to the private model, at rate 1 without momentum."""
    moved = {}
    for clip in (0.01, 1e3):
        home = by_hand.resident()
        hpm = by_hand.as_params(home, home.initial.flat + 0.5)
        memory = Memory(hpm=hpm, times=1)
        train = {"clip": clip, "lr": 1.0, "batch": 12, "epochs": 8}
        client = by_hand.client(home, by_hand.some(12), memory=memory, train=train, rounds=4)
        upload = MAP(lam=0.5).train(client)
        assert client.steps == 8
        moved[clip] = [float((a - b).norm()) for a, b in ((upload.w, home.initial.flat), (home.params.flat, upload.w))]
    for stage in (0, 1):
        assert 0.01 < moved[0.01][stage] <= 4 * 0.01 * 1.001
        assert moved[1e3][stage] > 0.1, "without clipping it goes farther"


@pytest.mark.parametrize(("split", "steps"), [(0.5, 4), (0.25, 2), (0.9, 7)])
def test_the_split_says_where_the_upload_is_taken(split: float, steps: int) -> None:
    home = by_hand.resident()
    client = by_hand.client(home, by_hand.some(24), train={"batch": 3})
    method = MAP(split=split)
    method.local(client, steps=steps)
    expected = home.params.flat.clone()
    client = by_hand.client(home, by_hand.some(24), train={"batch": 3})
    assert torch.equal(MAP(split=split).train(client).w, expected)
    assert client.steps == 8


def test_only_the_first_stage_is_restricted(ride: Riding) -> None:
    """With alpha = 0 rows of missing classes are as sent in the upload, and pushed away in the private model."""
    run = ride({"name": "map", "alpha": 0.0}, data="skewed", rounds=3)
    rows = run.layout.n_weights - 5 * 10
    for seen in run.of("train"):
        down, up, live = (flat[rows:].view(5, 10) for flat in (seen.down.w, seen.up.w, seen.live))
        for c in set(range(5)) - set(HOLDS[seen.client]):
            assert torch.equal(down[c], up[c])
            assert not torch.equal(down[c], live[c])


def test_messages_are_fedavgs_and_uploads_count_alike(ride: Riding) -> None:
    """Server line 6: psi <- sum 1/|S| psi_a."""
    run = ride("map", data="skewed", rounds=3)
    assert {tuple(s.up) for s in run.of("train")} == {tuple(s.down) for s in run.of("train")} == {("w",)}
    mean = torch.stack([run.train(3, k).up.w for k in range(4)]).mean(0)
    torch.testing.assert_close(run.params.flat, mean, rtol=1e-5, atol=1e-6)


def test_the_inherited_model_follows_equation_10_over_the_rounds(ride: Riding) -> None:
    run = ride("map", data="skewed", rounds=3)
    for k in range(4):
        hpm = None
        for round in (1, 2, 3):
            seen = run.train(round, k)
            mu = 0.9 * (round - 1) / 3
            hpm = seen.live if hpm is None else (1 - mu) * seen.live + mu * hpm
            torch.testing.assert_close(seen.memory().hpm.flat, hpm, rtol=1e-4, atol=1e-6)
            assert not torch.equal(seen.memory().hpm.flat, seen.up.w)


def test_the_counter_counts_selections_and_not_rounds(ride: Riding) -> None:
    run = ride("map", data="skewed", rounds=4, participation=0.5)
    selected = [s.client for s in run.of("train")]
    assert 0 < len(selected) < 16
    for k in set(selected):
        last = [s for s in run.of("train") if s.client == k][-1]
        assert last.memory().times == selected.count(k)


def test_a_rejected_upload_leaves_model_and_counter_as_before(ride: Riding) -> None:
    run = ride(spoiling(MAP), data="skewed", rounds=3)
    assert run.result["rejected"] == {"nonfinite": 1}
    one, two, three = (run.train(r, 1) for r in (1, 2, 3))
    assert three.before == one.after != two.after
    assert (two.memory().times, three.memory(after=False).times) == (2, 1)
    # the next one is taught by the model of round 1, with the momentum of one selection
    mu = 0.9 * 1 / 3
    expected = (1 - mu) * three.live + mu * one.memory().hpm.flat
    torch.testing.assert_close(three.memory().hpm.flat, expected, rtol=1e-4, atol=1e-6)


def test_the_inherited_model_answers(ride: Riding) -> None:
    run = ride("map", data="skewed", rounds=3)
    for k in range(4):
        flat = torch.cat([p.detach().flatten() for p in run.result.client(k).model.parameters()])
        assert torch.equal(flat, run.train(3, k).memory().hpm.flat)
    assert run.result["personal_selected"] is not None  # PA_sel, MAP's own measure
