"""The one training loop: the same steps as torch.optim.SGD, what is frozen, the lone sample, the batches."""

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import by_hand
from polyfed import rng
from polyfed.data.samples import Samples
from polyfed.methods.sites import Client
from polyfed.models.base import Net
from polyfed.params import Slice, bn, body, everything, head, last, named, nothing, trunk
from polyfed.parts.fit import Stream, balanced, on_plateau, shuffled
from polyfed.parts.losses import cross_entropy
from polyfed.parts.resident import Resident

RULES = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "decay": {"weight_decay": 0.1},
    "clip": {"clip": 0.05},
    "loose clip": {"clip": 1e6},
    "all": {"momentum": 0.8, "nesterov": True, "weight_decay": 0.05, "clip": 0.5},
}


def batches(client: Client, size: int, fit: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """What a fit sees, written down again: a keyed permutation per epoch, cut into batches."""
    epoch = 0
    while True:
        draw = rng.generator(client.task.seed, "batches", client.round, client.id, fit, epoch)
        order = torch.from_numpy(draw.permutation(client.n))
        for part in order.split(size):
            yield client.data.take(part)
        epoch += 1


def by_torch(client: Client, steps: int, keys: dict[str, Any], fit: int = 0) -> nn.Module:
    """The same descent by torch.optim, on a copy of the model as it is now."""
    net = copy.deepcopy(client.model).train().requires_grad_(True)
    for parameter in net.parameters():  # tensors of their own
        parameter.data = parameter.data.clone()
    rule = dict(keys)
    clip, size = rule.pop("clip", None), rule.pop("batch", 32)
    optimiser = torch.optim.SGD(net.parameters(), **rule)
    stream = batches(client, size, fit)
    for _ in range(steps):
        x, y = next(stream)
        optimiser.zero_grad()
        F.cross_entropy(net(x), y).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimiser.step()
    return net


def assert_same(home: Resident, net: nn.Module, tolerance: float) -> None:
    for name, value in net.state_dict().items():
        torch.testing.assert_close(home.model.state_dict()[name], value, rtol=tolerance, atol=tolerance)


# ---- as torch.optim.SGD


@pytest.mark.parametrize("bn", [False, True], ids=["plain", "bn"])
@pytest.mark.parametrize("name", RULES)
def test_steps_are_those_of_torch_sgd(name: str, bn: bool) -> None:
    keys = {"lr": 0.1, "batch": 5, **RULES[name]}
    home = by_hand.resident(bn=bn)
    for steps in (1, 2, 7):  # step by step, over the end of an epoch
        client = by_hand.client(home, by_hand.some(22), id=3, round=2, train=keys)
        expected = by_torch(client, steps, keys)
        assert client.fit(cross_entropy, steps=steps) == steps
        assert_same(home, expected, 1e-6)


def test_a_plain_step_has_the_bits_of_torch_sgd() -> None:
    home = by_hand.resident()
    client = by_hand.client(home, by_hand.some(20), train={"lr": 0.1, "batch": 7})
    expected = by_torch(client, 9, {"lr": 0.1, "batch": 7})
    client.fit(cross_entropy, steps=9)
    for name, value in expected.state_dict().items():
        assert torch.equal(home.model.state_dict()[name], value), name


def test_clipping_really_clips() -> None:
    moved = {}
    for clip in (None, 0.01):
        home = by_hand.resident()
        client = by_hand.client(home, by_hand.some(12), train={"lr": 1.0, "clip": clip})
        client.fit(cross_entropy, steps=1)
        moved[clip] = float((home.params.weights - home.initial.weights).norm())
    assert moved[0.01] == pytest.approx(0.01, rel=1e-3)
    assert moved[None] > 0.05


# ---- how long


def test_steps_epochs_and_the_rule_of_the_run() -> None:
    home = by_hand.resident()
    data = by_hand.some(22)

    def taken(**options: Any) -> int:
        client = by_hand.client(home, data, train={"batch": 5, "epochs": 2})  # 5 batches an epoch
        count = client.fit(cross_entropy, **options)
        assert client.steps == client.tally.steps == count
        return count

    assert taken() == 10
    assert taken(epochs=3) == 15
    assert taken(epochs=0.4) == 2
    assert taken(epochs=0) == 0
    assert taken(steps=7) == 7
    assert taken(steps=7, epochs=3) == 7
    assert taken(batch=11) == 4
    assert taken(on=data.only(data.y == 0), epochs=1) == 2


def test_nothing_to_fit_on_and_nothing_to_train_take_no_step() -> None:
    home = by_hand.resident()
    client = by_hand.client(home, by_hand.some(12))
    assert client.fit(cross_entropy, on=client.data.only(client.data.y > 9), steps=3) == 0
    assert client.fit(cross_entropy, train=nothing, steps=3) == 0
    assert torch.equal(home.params.flat, home.initial.flat)


def test_travelled_is_the_sum_of_learning_rates_and_the_tally_counts() -> None:
    client = by_hand.client(by_hand.resident(), by_hand.some(12), train={"batch": 4, "lr": 0.2})
    assert client.fit(cross_entropy, steps=3) == 3
    assert client.fit(cross_entropy, steps=2, lr=0.5) == 2, "its own steps, not all of them"
    assert client.travelled == pytest.approx(3 * 0.2 + 2 * 0.5)
    numbers = client.tally.numbers()
    assert (numbers["steps"], numbers["samples"], numbers["skipped_batches"]) == (5, 20, 0)
    assert 0 < numbers["loss"] < 5


def test_a_fit_may_have_a_rate_of_its_own() -> None:
    moved = {}
    for lr in (None, 0.5):
        home = by_hand.resident()
        by_hand.client(home, by_hand.some(12), train={"lr": 0.1}).fit(cross_entropy, steps=1, lr=lr)
        moved[lr] = home.params.weights - home.initial.weights
    torch.testing.assert_close(moved[0.5], 5 * moved[None], rtol=1e-4, atol=1e-6)


def test_the_learning_rate_follows_the_schedule_and_stays_after_the_last_round() -> None:
    keys = {"lr": 1.0, "schedule": {3: 0.5, 5: 0.25}}
    rates = [by_hand.client(by_hand.resident(), by_hand.some(), round=r, rounds=4, train=keys).lr for r in range(1, 6)]
    assert rates == [1.0, 1.0, 0.5, 0.5, 0.5]  # round 5 is finish: no new rate begins
    cosine = {"lr": 1.0, "schedule": "cosine"}
    last_one, finish = (
        by_hand.client(by_hand.resident(), by_hand.some(), round=r, rounds=4, train=cosine).lr for r in (4, 5)
    )
    assert finish == last_one > 0  # else fine-tuning under a cosine schedule would do nothing


# ---- going on


@pytest.mark.parametrize("keys", [{}, {"momentum": 0.9}], ids=["plain", "momentum"])
def test_going_on_is_as_if_it_had_never_stopped(keys: dict[str, Any]) -> None:
    keys = {"lr": 0.1, "batch": 5, **keys}
    whole, halves, apart = (by_hand.resident() for _ in range(3))
    data = by_hand.some(22)
    by_hand.client(whole, data, train=keys).fit(cross_entropy, steps=9)
    client = by_hand.client(halves, data, train=keys)
    client.fit(cross_entropy, steps=4)
    client.fit(cross_entropy, steps=5, go_on=True)
    assert torch.equal(halves.params.flat, whole.params.flat)
    client = by_hand.client(apart, data, train=keys)
    client.fit(cross_entropy, steps=4)
    client.fit(cross_entropy, steps=5)  # other batches, no momentum
    assert not torch.equal(apart.params.flat, whole.params.flat)


def test_momentum_belongs_to_what_it_was_gathered_for() -> None:
    """Going on with another slice must not push it with the momentum of the first."""
    keys = {"lr": 0.1, "batch": 6, "momentum": 0.9}
    data = by_hand.some(12)

    def head_after(first: Slice) -> Tensor:
        home = by_hand.resident()
        client = by_hand.client(home, data, train=keys)
        client.fit(lambda batch: 0.0 * cross_entropy(batch), steps=1, train=first)  # no movement
        assert torch.equal(home.params.weights, home.initial.weights)
        client.fit(cross_entropy, steps=1, train=head, go_on=True)
        return home.params.get(head)[0]

    assert torch.equal(head_after(head), head_after(trunk))
    home = by_hand.resident()
    client = by_hand.client(home, data, train=keys)
    client.fit(cross_entropy, steps=2, train=trunk)
    before = home.params.get(head)[0]
    client.fit(lambda batch: 0.0 * cross_entropy(batch), steps=1, train=head, go_on=True)
    assert torch.equal(home.params.get(head)[0], before)


# ---- what is frozen


@pytest.mark.parametrize("part", [head, body, last, trunk, named("trunk.fc1.*"), bn, head | trunk], ids=str)
def test_what_is_not_trained_keeps_its_bits(part: Slice) -> None:
    home = by_hand.resident(bn=True)
    client = by_hand.client(home, by_hand.some(20), train={"batch": 5, "momentum": 0.9, "weight_decay": 0.1})
    client.fit(cross_entropy, steps=6, train=part)
    for mine, first in zip(home.params.get(~part), home.initial.get(~part), strict=True):
        assert torch.equal(mine, first)
    assert not torch.equal(home.params.get(part)[0], home.initial.get(part)[0])


def test_a_frozen_norm_answers_by_its_statistics_and_a_trained_one_learns_them() -> None:
    home = by_hand.resident(bn=True)
    client = by_hand.client(home, by_hand.some(20), train={"batch": 5})
    modes: list[tuple[bool, bool]] = []

    def loss(batch: Any) -> Tensor:
        modes.append((home.model.trunk.norm1.training, home.model.last.norm2.training))
        return cross_entropy(batch)

    client.fit(loss, steps=2, train=last | head)
    assert set(modes) == {(False, True)}
    assert int(home.model.trunk.norm1.num_batches_tracked) == 0
    assert torch.equal(home.model.trunk.norm1.running_mean, torch.zeros(by_hand.HIDDEN))
    assert int(home.model.last.norm2.num_batches_tracked) == 2
    assert not torch.equal(home.model.last.norm2.running_mean, torch.zeros(by_hand.WIDTH))
    assert not any(module.training for module in home.model.modules())  # and afterwards nothing is in training


def test_inside_a_trained_piece_a_norm_whose_own_weights_are_frozen_stays_frozen() -> None:
    home = by_hand.resident(bn=True)
    by_hand.client(home, by_hand.some(20), train={"batch": 5}).fit(cross_entropy, steps=2, train=named("trunk.fc1.*"))
    assert int(home.model.trunk.norm1.num_batches_tracked) == 0


def test_layers_without_weights_follow_the_piece_they_are_in() -> None:
    """Dropout and norms without weights of their own are still while their piece is frozen."""

    def make() -> Net:
        first = nn.Sequential(nn.Linear(by_hand.INTO, 6), nn.BatchNorm1d(6, affine=False), nn.Dropout(0.5))
        second = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, affine=False), nn.Dropout(0.5))
        return Net(first, second, nn.Linear(5, by_hand.CLASSES))

    home = by_hand.resident(make=make)
    modes: list[list[bool]] = []

    def loss(batch: Any) -> Tensor:
        modes.append([home.model.trunk[1].training, home.model.trunk[2].training, home.model.last[1].training])
        return cross_entropy(batch)

    for part, expected in ((head, [False] * 3), (last, [False, False, True]), (everything, [True] * 3)):
        by_hand.client(home, by_hand.some(20)).fit(loss, steps=1, train=part)
        assert modes.pop() == expected


def test_norms_can_be_trained_on_fixed_statistics() -> None:
    home = by_hand.resident(bn=True)
    by_hand.client(home, by_hand.some(20), train={"batch": 5}).fit(cross_entropy, steps=2, bn="eval")
    assert home.params.integers.tolist() == [0, 0]
    assert torch.equal(home.params.buffers, home.initial.buffers)
    assert not torch.equal(home.model.trunk.norm1.weight, torch.ones(by_hand.HIDDEN))


# ---- the lone sample


def test_a_lone_sample_is_skipped_where_others_can_teach_the_norms() -> None:
    home = by_hand.resident(bn=True)
    client = by_hand.client(home, by_hand.some(11), train={"batch": 5})  # 5, 5, 1
    assert client.fit(cross_entropy, epochs=2) == 4
    assert client.tally.numbers() | {"loss": 0} == {
        "loss": 0,
        "steps": 4,
        "samples": 20,
        "skipped_batches": 2,
        "eval_mode_steps": 0,
    }


@pytest.mark.parametrize(("n", "batch"), [(6, 5), (3, 2), (5, 2)])
def test_a_lone_sample_is_skipped_even_after_one_batch_and_after_pairs(n: int, batch: int) -> None:
    client = by_hand.client(by_hand.resident(bn=True), by_hand.some(n), train={"batch": batch})
    assert client.fit(cross_entropy, epochs=2) == 2 * (n // batch)
    assert (client.tally.skipped_batches, client.tally.eval_mode_steps) == (2, 0)
    assert client.tally.samples == 2 * (n - 1)


def test_a_batch_of_two_is_never_skipped() -> None:
    client = by_hand.client(by_hand.resident(bn=True), by_hand.some(7), train={"batch": 5})
    assert client.fit(cross_entropy, epochs=1) == 2
    assert (client.tally.skipped_batches, client.tally.eval_mode_steps) == (0, 0)


def test_an_only_sample_is_learnt_with_the_norms_in_eval_mode() -> None:
    home = by_hand.resident(bn=True)
    client = by_hand.client(home, by_hand.some(1))
    assert client.fit(cross_entropy, epochs=3) == 3
    assert (client.tally.eval_mode_steps, client.tally.skipped_batches) == (3, 0)
    assert torch.equal(home.params.buffers, home.initial.buffers)
    assert not torch.equal(home.params.weights, home.initial.weights)


def test_batches_of_one_are_all_learnt_in_eval_mode() -> None:
    """With train.batch=1 no batch can teach a norm; skipping them all would train nothing."""
    home = by_hand.resident(bn=True)
    client = by_hand.client(home, by_hand.some(4), train={"batch": 1})
    assert client.fit(cross_entropy) == 4
    assert (client.tally.eval_mode_steps, client.tally.skipped_batches) == (4, 0)


@pytest.mark.parametrize("options", [{"bn": "eval"}, {"train": head}], ids=str)
def test_where_no_norm_is_in_training_a_lone_sample_is_like_any_other(options: dict[str, Any]) -> None:
    client = by_hand.client(by_hand.resident(bn=True), by_hand.some(11), train={"batch": 5})
    assert client.fit(cross_entropy, **options) == 3
    assert (client.tally.eval_mode_steps, client.tally.skipped_batches) == (0, 0)
    without = by_hand.client(by_hand.resident(), by_hand.some(11), train={"batch": 5})
    assert without.fit(cross_entropy) == 3


# ---- corrections


def test_a_correction_is_added_to_the_gradient_before_the_step() -> None:
    home = by_hand.resident()
    plain = by_hand.client(home, by_hand.some(12), train={"lr": 0.1})
    plain.fit(cross_entropy, steps=1)
    moved = home.params.weights.clone()
    push = torch.linspace(-1, 1, len(moved))
    by_hand.client(home, by_hand.some(12), train={"lr": 0.1}).fit(
        cross_entropy, steps=1, correct=lambda grad: grad.add_(push)
    )
    torch.testing.assert_close(home.params.weights, moved - 0.1 * push, rtol=1e-6, atol=1e-6)


def test_a_correction_cannot_move_what_is_not_trained() -> None:
    home = by_hand.resident()
    client = by_hand.client(home, by_hand.some(12), train={"lr": 0.1, "clip": 1.0, "momentum": 0.5})
    client.fit(cross_entropy, steps=3, train=head, correct=lambda grad: grad.add_(1.0))
    assert torch.equal(home.params.get(body)[0], home.initial.get(body)[0])


def test_a_correction_starts_from_nothing_where_nothing_is_trained() -> None:
    """What an earlier fit's correction wrote there is gone: who clips by the whole length must not see it."""
    home = by_hand.resident()
    client = by_hand.client(home, by_hand.some(12))
    client.fit(cross_entropy, steps=1, train=head, correct=lambda grad: grad.add_(1.0))
    seen: list[Tensor] = []
    client.fit(cross_entropy, steps=1, train=head, correct=lambda grad: seen.append(grad.clone()))
    trained = home.layout.length(head)
    assert not seen[0][:-trained].any()
    assert seen[0][-trained:].any()


# ---- batches


def stream(samples: Samples, size: int, key: int = 0, order: Any = shuffled, augment: Any = None) -> Stream:
    return Stream(samples, size, order, lambda epoch: rng.generator(0, "test", key, epoch), augment)


def positions(run: Stream, count: int) -> list[list[int]]:
    return [next(run)[2].tolist() for _ in range(count)]


def test_every_sample_comes_once_an_epoch() -> None:
    run = stream(by_hand.some(11), 4)
    assert run.per_epoch == 3
    one, two = positions(run, 3), positions(run, 3)
    for epoch in (one, two):
        assert [len(batch) for batch in epoch] == [4, 4, 3]
        assert sorted(i for batch in epoch for i in batch) == list(range(11))
    assert one != two


def test_the_order_is_a_matter_of_the_key() -> None:
    samples = by_hand.some(30)
    first = positions(stream(samples, 7), 9)
    assert positions(stream(samples, 7), 9) == first
    assert positions(stream(samples, 7, key=1), 9) != first


def test_clients_rounds_seeds_and_fits_draw_each_their_own_order() -> None:
    seen = []
    for where in ({}, {"id": 1}, {"round": 2}, {"seed": 1}):
        client = by_hand.client(by_hand.resident(), by_hand.some(30), **where)
        for _ in range(2):
            order: list[int] = []
            client.fit(lambda batch, to=order: to.extend(batch.index.tolist()) or cross_entropy(batch))
            seen.append(tuple(order))
    assert len(set(seen)) == len(seen) == 8


def test_tuning_on_features_first_leaves_the_raw_batches_as_they_are() -> None:
    """So methods that tune a head before they train still see the batches of those that do not."""
    orders = []
    for tunes in (False, True):
        client = by_hand.client(by_hand.resident(), by_hand.some(30), train={"batch": 7})
        if tunes:
            client.fit(cross_entropy, on=client.features("head"), train=head)
        order: list[int] = []
        client.fit(lambda batch, to=order: to.extend(batch.index.tolist()) or cross_entropy(batch))
        orders.append(order)
    assert orders[0] == orders[1]


def test_rows_labels_and_positions_belong_together() -> None:
    samples = by_hand.some(5000)  # more than one block is gathered
    run = stream(samples, 64)
    for _ in range(run.per_epoch):
        x, y, at = next(run)
        assert torch.equal(x, samples.pool.x[at])
        assert torch.equal(y, samples.y[at])


def test_the_balanced_order_draws_every_class_equally_often() -> None:
    samples = by_hand.some(labels=[0] * 900 + [1] * 90 + [2] * 10)
    drawn = np.concatenate([balanced(samples, rng.generator(0, "b", i)).numpy() for i in range(20)])
    assert len(balanced(samples, rng.generator(0, "b"))) == 1000
    shares = np.bincount(samples.y.numpy()[drawn], minlength=3) / len(drawn)
    assert shares == pytest.approx([1 / 3] * 3, abs=0.02)
    rare = np.bincount(drawn, minlength=1000)[990:]
    assert rare.min() > 0.8 * rare.mean()  # within a class all are alike


def test_the_balanced_order_copes_with_classes_that_are_not_there() -> None:
    samples = by_hand.some(labels=[4, 4, 7])
    assert set(balanced(samples, rng.generator(0, "b")).tolist()) <= {0, 1, 2}


def test_only_raw_inputs_are_augmented() -> None:
    raw = by_hand.some(6)
    features = Samples.of(torch.randn(6, 5), raw.y, cut="head")
    calls: list[int] = []

    def double(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(len(x))
        return 2 * x, y

    x, _, at = next(stream(raw, 4, augment=double))
    assert torch.equal(x, 2 * raw.pool.x[at])
    assert calls == [4]
    x, _, at = next(stream(features, 4, augment=double))
    assert torch.equal(x, features.pool.x[at])
    assert calls == [4]


# ---- who listens


def test_layers_that_listen_are_told_after_every_step() -> None:
    class Listening(nn.Linear):
        def __init__(self) -> None:
            super().__init__(by_hand.WIDTH, by_hand.CLASSES)
            self.heard: list[float] = []

        def after_step(self, loss: Tensor) -> None:
            assert not loss.requires_grad
            self.heard.append(float(loss))

        def reset(self) -> None:
            self.heard = []

    def make() -> Any:
        net = by_hand.tiny_net()
        net.head = Listening()
        return net

    home = by_hand.resident(make=make)
    client = by_hand.client(home, by_hand.some(12), train={"batch": 4})
    client.fit(cross_entropy, steps=3)
    assert len(home.model.head.heard) == 3
    assert sum(home.model.head.heard) / 3 == pytest.approx(client.tally.numbers()["loss"])
    home.reset()
    assert home.model.head.heard == []


def test_everything_is_trained_by_default() -> None:
    home = by_hand.resident()
    by_hand.client(home, by_hand.some(12)).fit(cross_entropy, steps=3)
    for part in (trunk, last, head):
        assert not torch.equal(home.params.get(part)[0], home.initial.get(part)[0])
    assert torch.equal(home.params.get(everything)[0], home.params.flat)


def test_a_correction_finds_nothing_of_the_step_before_where_nothing_is_trained() -> None:
    home = by_hand.resident()
    client, seen = by_hand.client(home, by_hand.some(12), train={"batch": 4}), []

    def correct(grad: torch.Tensor) -> None:
        seen.append(grad.clone())
        grad.add_(1)

    client.fit(cross_entropy, steps=3, train=head, correct=correct)
    outside = home.layout.n_weights - home.layout.length(head)
    assert [float(grad[:outside].abs().sum()) for grad in seen] == [0, 0, 0]
    assert all(grad[outside:].any() for grad in seen)


def test_blocks_epochs_and_positions_taken_ahead_leave_the_same_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = by_hand.some(11)
    plain = stream(samples, 2)
    expected = [next(plain)[2].tolist() for _ in range(20)]
    monkeypatch.setattr("polyfed.parts.fit.GATHER", 4 * samples.pool.x[0].numel() * 4)  # two batches a block
    blocks = stream(samples, 2)
    for most, wanted in ((None, expected[:3]), (2, expected[3:5]), (None, expected[5:9]), (9, expected[9:12])):
        if most is None:
            for each in wanted:
                x, y, index = next(blocks)
                assert index.tolist() == each
                assert torch.equal(x, samples.take(index)[0])
                assert torch.equal(y, samples.take(index)[1])
        else:  # an epoch has six batches, and no piece goes beyond it
            assert blocks.positions(most).tolist() == [position for each in wanted for position in each]
    assert next(blocks)[2].tolist() == expected[12]


# ---- ending early


@pytest.mark.parametrize(
    ("losses", "ends"),
    [
        ([], False),
        ([5.0, 5.0], False),  # there is nothing to compare with
        ([5.0, 5.0, 9.0], False),  # not yet two more
        ([5.0, 5.0, 6.0, 3.0], False),  # 4.5 is below 5
        ([5.0, 5.0, 6.0, 4.0], True),  # 5 is not
        ([5.0, 5.0, 1.0, 1.0, 2.0, 2.0], True),  # below the first, but not the lowest
    ],
)
def test_a_plateau_is_where_a_mean_is_not_the_lowest(losses: list[float], ends: bool) -> None:
    for before in ([], [0.1]):  # of another fit
        assert on_plateau([torch.tensor(v) for v in before + losses], len(before), 2) == ends


@pytest.mark.parametrize(("rise", "taken"), [(False, 12), (True, 6)])
def test_a_fit_with_patience_ends_where_its_loss_rises(rise: bool, taken: int) -> None:
    client = by_hand.client(by_hand.resident(), by_hand.some(12), train={"batch": 4})
    client.fit(cross_entropy, steps=2)
    seen: list[int] = []

    def loss(batch: Any) -> Tensor:
        seen.append(len(batch))
        return cross_entropy(batch) * 0 + (len(seen) if rise else -len(seen))

    assert client.fit(loss, steps=12, patience=3) == taken
    assert client.steps == 2 + taken
    assert client.fit(cross_entropy, steps=4) == 4, "nobody asked for it"


def test_patience_on_rows_under_a_head() -> None:
    """Where the gradient is known in closed form, too: a rate that leaps ends it."""
    client = by_hand.client(by_hand.resident(), by_hand.some(12), train={"batch": 12})
    rows = client.features("head")
    assert client.fit(cross_entropy, on=rows, train=head, steps=40, lr=1e-3, patience=4) == 40
    assert client.fit(cross_entropy, on=rows, train=head, steps=40, lr=500.0, patience=4) < 40
