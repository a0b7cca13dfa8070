"""FedBABU (Oh et al. 2022): only the body is trained and averaged, under the common random head; then all is tuned."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from riding import Ride

import by_hand
from polyfed.methods.fedbabu import FedBABU
from polyfed.params import body, head

Riding = Callable[..., Ride]


def test_the_head_stays_at_its_initial_value_everywhere(ride: Riding) -> None:
    run = ride("fedbabu", data="skewed", rounds=2)
    first = run.initial.get(head)[0]
    assert torch.equal(run.params.get(head)[0], first)
    for seen in run.of("train"):
        live = run.initial.copy()
        live.flat.copy_(seen.live)
        assert torch.equal(live.get(head)[0], first)
        assert torch.equal(live.get(body)[0], seen.up.w)
        assert not torch.equal(seen.up.w, seen.down.w)
    mean = torch.stack([run.train(2, k).up.w for k in range(4)]).mean(0)  # uniform, as in the original
    torch.testing.assert_close(run.params.get(body)[0], mean, rtol=1e-5, atol=1e-6)


def test_in_the_end_everybody_tunes_the_whole_model() -> None:
    home, data = by_hand.resident(), by_hand.some(12)
    client = by_hand.client(home, data, train={"batch": 4, "lr": 5.0})
    FedBABU(ft_epochs=2, ft_lr=0.1).finish(client)
    tuned = client.memory.tuned
    assert client.steps == 6
    assert client.travelled == pytest.approx(6 * 0.1)  # its own rate
    assert not torch.equal(tuned.get(head)[0], home.initial.get(head)[0])
    assert not torch.equal(tuned.get(body)[0], home.initial.get(body)[0])


def test_the_tuned_model_answers_and_the_untuned_is_the_global_one(ride: Riding) -> None:
    run = ride("fedbabu", data="skewed", rounds=2)
    for seen in run.of("finish"):
        flat = torch.cat([p.detach().flatten() for p in run.result.client(seen.client).model.parameters()])
        assert torch.equal(flat, seen.memory().tuned.flat)
    whole = torch.cat([p.detach().flatten() for p in run.result.global_model().model.parameters()])
    assert torch.equal(whole, run.params.flat)
    assert run.result["global"] is not None


def test_with_a_given_start_its_head_is_the_one_every_client_knows(ride: Riding) -> None:
    """`init` is where every site starts, so that a head that is never sent is everybody's all the same."""
    first: Path = ride("fedavg", data="skewed", rounds=2).result.path
    run = ride("fedbabu", data="skewed", rounds=1, init=str(first))
    trained = ride("fedavg", data="skewed", rounds=2).params
    assert torch.equal(run.train(1, 0).down.w, trained.get(body)[0])
    assert torch.equal(run.params.get(head)[0], trained.get(head)[0])
    assert torch.equal(run.world.resident.initial.get(head)[0], trained.get(head)[0])
