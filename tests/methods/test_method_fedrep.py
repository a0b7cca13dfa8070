"""FedRep (Collins et al. 2021): the head first, on the frozen body; then the body, under the frozen head."""

from collections.abc import Callable

import pytest
import torch
from riding import Ride

import by_hand
from polyfed.methods.fedrep import FedRep
from polyfed.params import body, head
from polyfed.parts.losses import cross_entropy

Riding = Callable[..., Ride]


def test_head_epochs_then_body_epochs() -> None:
    home, data = by_hand.resident(), by_hand.some(12)
    train = {"lr": 0.2, "batch": 4, "epochs": 5}
    client = by_hand.client(home, data, train=train)
    client.fit(cross_entropy, on=client.features("head"), epochs=4, train=head)
    after_head = home.params.copy()
    client.fit(cross_entropy, epochs=1, train=body)
    expected = home.params.copy()
    assert torch.equal(after_head.get(body)[0], home.initial.get(body)[0])
    client = by_hand.client(home, data, train=train)
    upload = FedRep().train(client)
    assert torch.equal(home.params.flat, expected.flat)
    assert torch.equal(upload.w, expected.get(body)[0])
    assert torch.equal(home.params.get(head)[0], after_head.get(head)[0])  # frozen while the body learns
    assert client.steps == 4 * 3 + 3


@pytest.mark.parametrize(
    ("epochs", "keys", "steps"), [(5, {}, 12 + 3), (1, {}, 3 + 3), (5, {"head_epochs": 2, "body_epochs": 3}, 6 + 9)]
)
def test_the_split_of_the_epochs(epochs: int, keys: dict, steps: int) -> None:
    """E - 1 and 1 by default; one epoch at least for the head."""
    client = by_hand.client(by_hand.resident(), by_hand.some(12), train={"batch": 4, "epochs": epochs})
    FedRep(**keys).train(client)
    assert client.steps == steps


def test_the_head_stays_and_there_is_no_global_model(ride: Riding) -> None:
    run = ride("fedrep", data="skewed", rounds=2)
    assert run.result["global"] is None
    assert torch.equal(run.params.get(head)[0], run.initial.get(head)[0])
    assert run.train(2, 0).before == run.train(1, 0).after
