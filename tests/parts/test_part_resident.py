"""The resident model, its frozen copies, cached features, and that nothing stays from the client before."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import by_hand
from polyfed.data.samples import Samples
from polyfed.methods.sites import Client
from polyfed.models.base import Net
from polyfed.params import Slice, body, everything, head, named, trunk
from polyfed.parts.losses import cross_entropy
from polyfed.parts.resident import Batch, Frozen, Resident


class Counter:
    """Counts the forward passes, and the rows, of a module."""

    def __init__(self, module: torch.nn.Module):
        self.calls = self.rows = 0
        module.register_forward_hook(self._hook)

    def _hook(self, module: Any, given: tuple[Tensor, ...], out: Tensor) -> None:
        self.calls += 1
        self.rows += len(given[0])


def batch_of(home: Resident, data: Samples, at: list[int]) -> Batch:
    index = torch.tensor(at)
    x, y = data.take(index)
    return Batch(home.model, x, y, index, data)


def moved(home: Resident) -> Any:
    """Other values than the live ones."""
    params = home.initial.copy()
    params.weights.add_(torch.linspace(-0.3, 0.3, len(params.weights)))
    return params


# ---- a batch


def test_features_and_logits_are_computed_once() -> None:
    home = by_hand.resident()
    counter = Counter(home.model.last)
    batch = batch_of(home, by_hand.some(6), [0, 3, 5])
    assert batch.logits is batch.logits
    assert batch.features is batch.features
    assert counter.calls == 1
    torch.testing.assert_close(batch.logits, home.model(batch.x))
    assert len(batch) == 3


@pytest.mark.parametrize("cut", ["last", "head"])
def test_a_batch_of_features_runs_only_what_is_left_of_the_model(cut: str) -> None:
    home = by_hand.resident()
    data = by_hand.some(6)
    client = by_hand.client(home, data)
    rows = client.features(cut)  # type: ignore[arg-type]
    trunks = Counter(home.model.trunk)
    batch = batch_of(home, rows, [1, 4])
    torch.testing.assert_close(batch.logits, home.model.head(home.model.last(home.model.trunk(data.pool.x[[1, 4]]))))
    assert trunks.calls == 1  # the reference, not the batch


# ---- frozen copies


@pytest.mark.parametrize("bn", [False, True])
def test_a_frozen_copy_answers_with_its_own_values_in_eval_mode(bn: bool) -> None:
    home = by_hand.resident(bn=bn)
    other = moved(home)
    frozen = home.frozen(other, augmented=False)
    expected = copy.deepcopy(home.model).eval()
    with torch.no_grad():
        for entry in home.layout.floats:
            tensor = dict([*expected.named_parameters(), *expected.named_buffers()])[entry.name]
            tensor.copy_(entry.view(other.flat))
    data = by_hand.some(9)
    batch = batch_of(home, data, [8, 0, 3])
    torch.testing.assert_close(frozen.logits(batch), expected(batch.x))
    torch.testing.assert_close(frozen.features(batch), expected.features(batch.x))
    assert not frozen.logits(batch).requires_grad
    assert not any(p.requires_grad for p in frozen.model.parameters())
    assert not frozen.model.training


def test_only_inputs_change_where_they_are_augmented_so_answers_on_features_are_computed_once() -> None:
    home = by_hand.resident()
    data = by_hand.some(9)
    rows = by_hand.client(home, data).features("head")
    for on, calls in ((data, 2), (rows, 1)):
        frozen = home.frozen(moved(home), augmented=True)
        counter = Counter(frozen.model.head)
        for at in ([8, 0], [3, 4]):
            frozen.logits(batch_of(home, on, at))
        assert counter.calls == calls


def test_training_the_resident_leaves_a_frozen_copy_alone() -> None:
    home = by_hand.resident()
    client = by_hand.client(home, by_hand.some(12))
    frozen = client.frozen(client.live)
    before = frozen.logits(batch_of(home, client.data, [0, 1]))
    client.fit(cross_entropy, steps=3)
    assert torch.equal(frozen.params.flat, home.initial.flat)
    assert torch.equal(frozen.logits(batch_of(home, client.data, [0, 1])), before)


def test_its_answers_are_computed_once_per_sample() -> None:
    home = by_hand.resident()
    client = by_hand.client(home, by_hand.some(12), train={"batch": 4})
    teacher = client.frozen(moved(home))
    counter = Counter(teacher.model.trunk)
    client.fit(lambda batch: cross_entropy(batch) + 0 * teacher.logits(batch).sum(), epochs=5)
    assert (counter.calls, counter.rows) == (1, 12)
    batch = batch_of(home, client.data, [11, 2])
    teacher.features(batch)
    assert counter.calls == 2  # features are another table
    some = client.data.only(client.data.y == 0)
    torch.testing.assert_close(
        teacher.logits(batch_of(home, some, [1])), teacher.model(some.take(torch.tensor([1]))[0])
    )
    assert counter.calls == 4  # other rows: a table of their own, and the reference


def test_where_inputs_change_every_time_it_answers_every_time() -> None:
    home = by_hand.resident()
    client = by_hand.client(home, by_hand.some(8), augment=lambda x, y: (x + 1, y), train={"batch": 4})
    teacher = client.frozen(moved(home))
    counter = Counter(teacher.model.trunk)
    seen: list[tuple[Tensor, Tensor]] = []

    def loss(batch: Batch) -> Tensor:
        seen.append((batch.x, teacher.logits(batch)))
        return cross_entropy(batch)

    client.fit(loss, epochs=2)
    assert counter.calls == 4
    x, answer = seen[0]
    torch.testing.assert_close(answer, teacher.model(x))
    assert not answer.requires_grad


def test_two_copies_are_two_models() -> None:
    home = by_hand.resident()
    one, two = home.frozen(home.initial, False), home.frozen(moved(home), False)
    assert one.model is not two.model
    assert not torch.equal(one.params.flat, two.params.flat)
    assert torch.equal(one.params.flat, home.initial.flat)


# ---- cached features


def features_counted(client: Client, cut: Any) -> tuple[Samples, Counter]:
    counter = Counter(client.model.trunk)
    return client.features(cut), counter


@pytest.mark.parametrize("cut", ["last", "head"])
def test_features_are_kept_while_what_lies_below_is_unchanged(cut: Any) -> None:
    home = by_hand.resident(bn=True)
    client = by_hand.client(home, by_hand.some(10))
    rows, counter = features_counted(client, cut)
    assert (counter.calls, rows.cut) == (1, cut)
    client.fit(cross_entropy, on=rows, steps=3, train=head)
    assert client.features(cut) is rows
    assert counter.calls == 1
    with torch.no_grad():
        below = client.model.trunk(client.data.pool.x)
        torch.testing.assert_close(rows.pool.x, below if cut == "last" else client.model.last(below))
    assert torch.equal(rows.y, client.data.y)


def test_features_are_computed_again_after_the_body_changed() -> None:
    home = by_hand.resident(bn=True)
    client = by_hand.client(home, by_hand.some(10))
    for part, again in ((trunk, True), (head, False), (body, True)):
        rows, counter = features_counted(client, "head")
        client.fit(cross_entropy, steps=2, train=part)
        assert (client.features("head") is not rows) == again
    rows = client.features("head")
    client.live.buffers.add_(0.5)  # running statistics are below too
    assert client.features("head") is not rows
    assert counter.calls > 0


def test_features_at_the_last_stage_survive_its_training() -> None:
    client = by_hand.client(by_hand.resident(), by_hand.some(10))
    rows = client.features("last")
    whole = client.features("head")
    client.fit(cross_entropy, on=rows, steps=2, train=head | ~trunk)
    assert client.features("last") is rows
    assert client.features("head") is not whole


def test_where_inputs_are_augmented_the_data_themselves_come_back() -> None:
    client = by_hand.client(by_hand.resident(), by_hand.some(10), augment=lambda x, y: (x, y))
    assert client.features("head") is client.data


def test_fitting_a_head_on_features_equals_fitting_it_on_the_data() -> None:
    made = []
    for cached in (True, False):
        home = by_hand.resident(bn=True)
        client = by_hand.client(home, by_hand.some(11), train={"batch": 4, "momentum": 0.9})
        on = client.features("head") if cached else client.data
        in_order = {"batches": lambda samples, rng: torch.arange(len(samples))}  # features have batches of their own
        client.fit(cross_entropy, on=on, epochs=3, train=head, **in_order)
        made.append(home.params.flat.clone())
    torch.testing.assert_close(*made, rtol=1e-6, atol=1e-6)


# ---- nothing of the client before


def test_a_correction_sees_nothing_of_the_client_before() -> None:
    home = by_hand.resident()
    home.grad.fill_(7.0)
    seen = []
    client = by_hand.client(home, by_hand.some(12))
    client.fit(cross_entropy, steps=1, train=head, correct=lambda grad: seen.append(grad.clone()))
    begin, end = home.layout.ranges(head)[0]
    assert seen[0][begin:end].abs().sum() > 0
    assert seen[0][:begin].abs().sum() == 0, "what is not trained has no gradient"


def test_a_reset_may_start_from_other_values() -> None:
    home = by_hand.resident(bn=True)
    home.reset(moved(home))
    assert torch.equal(home.params.flat, moved(home).flat)
    assert not torch.equal(home.params.flat, home.initial.flat)


def test_a_reset_leaves_nothing_of_the_client_before() -> None:
    home = by_hand.resident(bn=True)
    client = by_hand.client(home, by_hand.some(12))
    teacher = client.frozen(moved(home))
    client.fit(cross_entropy, steps=3)
    home.model.train()
    home.reset()
    assert torch.equal(home.params.flat, home.initial.flat)
    assert torch.equal(home.params.integers, home.initial.integers)
    assert not any(module.training for module in home.model.modules())
    again = home.frozen(home.initial, False)
    assert again.model is teacher.model  # the copy is used again ...
    assert torch.equal(again.params.flat, home.initial.flat)  # ... with nothing of what it held
    batch = batch_of(home, client.data, [0])
    with torch.no_grad():
        torch.testing.assert_close(again.logits(batch), home.model(batch.x))


def test_work_after_other_work_has_the_bits_of_work_alone() -> None:
    data, other = by_hand.some(12), by_hand.some(9, seed=5)
    train = {"batch": 5, "momentum": 0.9, "lr": 0.1}
    alone = by_hand.resident(bn=True)
    by_hand.client(alone, data, train=train).fit(cross_entropy, steps=4)
    home = by_hand.resident(bn=True)
    before = by_hand.client(home, other, id=1, train=train)
    before.frozen(moved(home))
    before.fit(cross_entropy, steps=2, train=head, correct=lambda grad: grad.add_(1))
    by_hand.client(home, data, train=train).fit(cross_entropy, steps=4)
    assert torch.equal(home.params.flat, alone.params.flat)
    assert torch.equal(home.params.integers, alone.params.integers)


def test_the_initial_values_are_nobodys_to_change() -> None:
    home = by_hand.resident()
    first = home.initial.copy()
    by_hand.client(home, by_hand.some(12)).fit(cross_entropy, steps=2)
    Frozen(home.model, home.params, False)
    assert torch.equal(home.initial.flat, first.flat)


# ---- what a site can do


def test_fresh_gives_a_slice_keyed_initial_values() -> None:
    home = by_hand.resident()

    def made(*where: int, **site: Any) -> Tensor:
        client = by_hand.client(home, by_hand.some(6), **site)
        client.fresh(head, *where)
        assert torch.equal(home.params.get(body)[0], home.initial.get(body)[0])
        return home.params.get(head)[0]

    one = made(0)
    assert torch.equal(made(0), one)
    others = [made(1), made(0, id=1), made(0, round=2), made(0, seed=1), home.initial.get(head)[0]]
    assert not any(torch.equal(one, other) for other in others)
    assert float(one.abs().max()) <= by_hand.WIDTH**-0.5  # nn.Linear's own range


def test_mean_loss_is_of_other_values_and_leaves_the_live_ones() -> None:
    home = by_hand.resident(bn=True)
    client = by_hand.client(home, by_hand.some(150))  # more than one pass
    live = home.params.copy()
    other = moved(home)
    frozen = home.frozen(other, False)
    expected = torch.nn.functional.cross_entropy(frozen.model(client.data.pool.x), client.data.y)
    assert client.mean_loss(other, cross_entropy) == pytest.approx(float(expected), rel=1e-5)
    assert torch.equal(home.params.flat, live.flat)
    assert torch.equal(home.params.integers, live.integers)


@pytest.mark.parametrize(
    ("n", "epochs", "at_least", "share", "expected"),
    [
        (64, 1, 5, 0.5, (4, 4)),
        (72, 1, 5, 0.5, (4, 5)),
        (8, 1, 5, 0.5, (2, 3)),
        (64, 3, 5, 0.25, (6, 18)),
        (8, 1, 5, 0.01, (1, 4)),
        (8, 1, 5, 0.99, (4, 1)),
        (8, 1, 5, 1.0, (4, 1)),
        (8, 1, 0, 0.5, (1, 1)),
        (24, 1, 0, 0.5, (1, 2)),
    ],
)
def test_the_steps_of_two_stages(n: int, epochs: float, at_least: int, share: float, expected: tuple[int, int]) -> None:
    """MAP 3.3: n_tot = max(E * batches, min_steps), n_1 = n_tot // 2; no stage is ever empty."""
    train = {"batch": 8, "epochs": epochs, "min_steps": at_least}
    client = by_hand.client(by_hand.resident(), by_hand.some(n), train=train)
    assert client.halves(share) == expected


def test_a_round_has_a_least_number_of_steps_where_the_method_names_no_epochs_of_its_own() -> None:
    client = by_hand.client(by_hand.resident(), by_hand.some(8), train={"batch": 8, "min_steps": 4})
    assert client.fit(cross_entropy) == 4
    assert client.fit(cross_entropy, epochs=2) == 2
    assert client.fit(cross_entropy, steps=1) == 1


def test_a_client_knows_what_it_holds() -> None:
    client = by_hand.client(by_hand.resident(), by_hand.some(labels=[2, 2, 0]), round=3)
    assert (client.n, client.counts.tolist(), client.classes.tolist(), client.new) == (3, [1, 0, 2], [0, 2], True)
    draws = {float(client.draw(purpose, *where).random()) for purpose, where in (("a", ()), ("b", ()), ("a", (1,)))}
    assert len(draws) == 3
    assert client.draw("a").random() == client.draw("a").random()


# ---- modules that a method builds beside trunk, last and head


def with_a_gate() -> Net:
    """A net with a normalised gate of its own beside it, as FLDA has one."""
    net = by_hand.tiny_net(bn=True)
    net.gate = nn.Sequential(nn.BatchNorm1d(by_hand.WIDTH), nn.Linear(by_hand.WIDTH, 1), nn.Dropout(0.5))
    return net


@pytest.mark.parametrize(
    ("train", "bn", "expected"),
    [
        (everything, "train", True),
        (everything, "eval", False),
        (named("gate.*"), "train", True),
        (head, "train", False),
        (named("gate.1.*"), "train", False),  # its BN has weights, and they are frozen
    ],
)
def test_bn_of_an_added_module_follows_what_is_trained_and_bn(train: Slice, bn: str, expected: bool) -> None:
    home = by_hand.resident(make=with_a_gate)
    home.choose(train, bn)
    assert home.model.gate[0].training is expected
    assert (home.model.gate[0] in home.norms_in_training()) is expected
    assert home.model.gate[2].training is (train != head)
    assert home.model.trunk[1].training is (train == everything and bn == "train")


def test_an_added_module_learns_its_statistics_in_a_fit_and_is_left_in_eval_mode() -> None:
    home = by_hand.resident(make=with_a_gate)
    client = by_hand.client(home, by_hand.some(12))
    before = home.model.gate[0].running_mean.clone()
    client.fit(lambda batch: cross_entropy(batch) + home.model.gate(batch.features).square().mean(), steps=2)
    assert not torch.equal(home.model.gate[0].running_mean, before)
    assert not any(module.training for module in home.model.modules())


# ---- a penalty in the wrong place


def test_a_loss_that_reads_live_values_is_told_where_its_term_belongs() -> None:
    home = by_hand.resident()
    client = by_hand.client(home, by_hand.some(12))
    with pytest.raises(ValueError, match=r"carry no gradient.*write it in `correct`"):
        client.fit(lambda batch: cross_entropy(batch) + client.live.weights.square().sum())
    assert client.live.weights.shape == (home.layout.n_weights,), "outside of a loss they can be read"
    client.fit(lambda batch: cross_entropy(batch) + sum(p.square().sum() for p in client.model.parameters()), steps=1)
