"""FedAFA: features of rare classes made from those of others train the layers after the cut."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from riding import Ride

import by_hand
from polyfed.config import Train
from polyfed.data.samples import Samples
from polyfed.methods.base import Client
from polyfed.methods.fedafa import FedAFA
from polyfed.params import head, last, trunk
from polyfed.parts.adversarial import wanted
from polyfed.parts.fit import balanced
from polyfed.parts.losses import cross_entropy
from polyfed.parts.resident import Batch

Riding = Callable[..., Ride]
LABELS = [0] * 8 + [1] * 2 + [2] * 2
EASY = {"accept": 0.0}


def test_only_the_layers_after_the_cut_are_trained() -> None:
    home, data = by_hand.resident(bn=True), by_hand.some(labels=LABELS)
    client = by_hand.client(home, data, train={"batch": 6})
    FedAFA(epochs=2, lr=0.1).finish(client)
    tuned = home.initial.copy()
    tuned.put(head | last, client.memory.tuned)
    assert torch.equal(tuned.get(trunk)[0], home.initial.get(trunk)[0])
    assert torch.equal(tuned.buffers, home.initial.buffers), "statistics of BN stay"
    assert not torch.equal(tuned.weights, home.initial.weights)
    assert torch.equal(home.params.flat, home.initial.flat), "what the base keeps is as it was"


@pytest.mark.parametrize("method", [FedAFA(c=0.0, **EASY, lr=0.1, epochs=2), FedAFA(accept=1.0, lr=0.1, epochs=2)])
def test_without_generated_features_it_is_balanced_tuning(method: FedAFA) -> None:
    home, data = by_hand.resident(), by_hand.some(labels=LABELS)
    client = by_hand.client(home, data, train={"batch": 6})
    method.finish(client)
    plain = by_hand.client(home, data, train={"batch": 6})
    rule = Train(momentum=0.9, nesterov=True, weight_decay=5e-4, batch=6)
    plain.fit(
        cross_entropy, on=plain.features("last"), train=head | last, batches=balanced, epochs=2, lr=0.1, rule=rule
    )
    torch.testing.assert_close(client.memory.tuned, plain.live.get(head | last)[0], rtol=1e-5, atol=1e-6)


def test_the_loss_is_a_share_of_what_is_generated() -> None:
    home, data = by_hand.resident(), by_hand.some(labels=LABELS)
    client = by_hand.client(home, data)
    batch = whole(client, client.features("last"))
    teacher = client.frozen(client.live).model
    method = FedAFA(c=0.6, **EASY)
    made, targets = method.generated(client, batch, teacher, client.draw("generated"))
    assert 0 < len(targets) < len(data)
    assert 0 not in targets, "the largest class is never made up"
    net = home.model
    expected = 0.6 * F.cross_entropy(net.head(net.last(made)), targets) + 0.4 * F.cross_entropy(batch.logits, batch.y)
    torch.testing.assert_close(method.mixed_loss(client, batch, teacher, client.draw("generated")), expected)


def test_generated_features_are_taken_for_their_class() -> None:
    home, data = by_hand.resident(), by_hand.some(labels=LABELS * 4)
    client = by_hand.client(home, data)
    batch, teacher = whole(client, client.features("last")), client.frozen(client.live).model
    made, targets = FedAFA().generated(client, batch, teacher, client.draw("generated"))
    sure = teacher.head(teacher.last(made)).softmax(1).gather(1, targets[:, None])
    assert len(targets) > 0
    assert float(sure.min()) >= 0.5
    assert float(made.min()) >= 0


def whole(client: Client, on: Samples) -> Batch:
    """Everything as one batch."""
    index = torch.arange(len(on))
    return Batch(client.model, *on.take(index), index, on)


def test_where_inputs_are_augmented_they_are_cut_in_the_loss() -> None:
    home, data = by_hand.resident(), by_hand.some(labels=LABELS)
    client = by_hand.client(home, data, augment=lambda x, y: (x, y), train={"batch": 12})
    teacher = client.frozen(client.live).model
    cut = Samples.of(home.model.trunk(data.pool.x).detach(), data.y, "last")
    one, other = (
        FedAFA(**EASY).generated(client, whole(client, on), teacher, client.draw("generated")) for on in (data, cut)
    )
    torch.testing.assert_close(one, other)
    assert len(one[1]) > 0
    FedAFA(epochs=1, lr=0.1).finish(client)
    assert not torch.equal(client.memory.tuned, home.initial.get(head | last)[0])


def test_a_feature_starts_at_its_source() -> None:
    home, data = by_hand.resident(), by_hand.some(labels=LABELS)
    client = by_hand.client(home, data)
    batch, teacher = whole(client, client.features("last")), client.frozen(client.live).model
    chosen, source = wanted(batch.y, client.counts, client.draw("generated"))
    made, y = FedAFA(**EASY, steps=0, size=1e-9).generated(client, batch, teacher, client.draw("generated"))
    assert not torch.equal(chosen, source)
    torch.testing.assert_close(made, batch.x[source])
    assert torch.equal(y, batch.y[chosen])


def test_a_client_of_one_class_makes_nothing() -> None:
    home, data = by_hand.resident(), by_hand.some(labels=[1] * 6)
    client = by_hand.client(home, data, train={"batch": 6})
    FedAFA(epochs=1).finish(client)
    assert client.steps == 1


def test_the_tuned_layers_answer_after_and_the_base_before(ride: Riding) -> None:
    run = ride({"name": "fedafa", "epochs": 2}, data="skewed", rounds=2)
    assert run.result["personal_before"] == run.result["global_local"]
    for seen in run.of("finish"):
        model = run.result.client(seen.client).model
        expected = run.params.copy()
        expected.put(head | last, seen.memory().tuned)
        flat = torch.cat([p.detach().flatten() for p in model.parameters()])
        assert torch.equal(flat, expected.flat)
        assert not torch.equal(flat, run.params.flat)
