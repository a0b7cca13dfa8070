"""FedAvg-FT: any method, then every client tunes the final model, or its own where none is global."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from riding import Ride

import by_hand
from polyfed.message import Memory
from polyfed.methods.base import Task, methods
from polyfed.methods.fedavg_ft import FedAvgFT
from polyfed.methods.fedbn import FedBN
from polyfed.methods.fedper import FedPer
from polyfed.methods.fedrs import FedRS
from polyfed.params import bn, head, nothing
from polyfed.parts.losses import cross_entropy

Riding = Callable[..., Ride]


@pytest.mark.parametrize(("lr", "rate"), [(None, 0.2), (0.05, 0.05)])
def test_tuning_is_so_many_epochs_of_all_layers(lr: float | None, rate: float) -> None:
    home, data = by_hand.resident(), by_hand.some(12)
    keys: dict[str, Any] = {"round": 4, "rounds": 3, "train": {"lr": 0.2, "batch": 4}}
    client = by_hand.client(home, data, **keys)
    client.fit(cross_entropy, epochs=3, lr=rate)
    expected = home.params.flat.clone()
    client = by_hand.client(home, data, **keys)
    FedAvgFT(epochs=3, lr=lr).finish(client)
    assert torch.equal(client.memory.tuned.flat, expected)
    assert client.travelled == pytest.approx(9 * rate)


def test_under_a_cosine_schedule_tuning_still_moves(ride: Riding) -> None:
    """Its rate is that of the last round; one round further the cosine is zero."""
    run = ride({"name": "fedavg-ft", "epochs": 1}, data="skewed", rounds=2, **{"train.schedule": "cosine"})
    for seen in run.of("finish"):
        assert not torch.equal(seen.memory().tuned.flat, seen.down.w)


def test_the_tuned_model_answers_after_and_the_global_one_before(ride: Riding) -> None:
    run = ride("fedavg-ft", data="skewed", rounds=2)
    for seen in run.of("finish"):
        flat = torch.cat([p.detach().flatten() for p in run.result.client(seen.client).model.parameters()])
        assert torch.equal(flat, seen.memory().tuned.flat)
    assert run.result["personal_before"] == run.result["global_local"]
    assert run.result["personal"] != run.result["personal_before"]


def test_held_out_clients_are_tuned_too(ride: Riding) -> None:
    run = ride("fedavg-ft", data="skewed", rounds=2, **{"split.heldout": 2})
    assert {s.client for s in run.of("finish")} == {0, 1, 2, 3}
    assert {s.client for s in run.of("train")} == set(run.world.federation.participants)


@pytest.mark.parametrize("base", ["fedprox", "scaffold", "fedbabu", "fedcrc", "map"])
def test_it_stands_on_any_method_with_a_global_model(ride: Riding, base: str) -> None:
    run = ride({"name": "fedavg-ft", "epochs": 1, "base": {"name": base}}, data="skewed", rounds=2)
    alone = ride({"name": base}, data="skewed", rounds=2)
    assert torch.equal(run.params.flat, alone.params.flat)
    assert len(run.of("finish")) == 4


def test_it_takes_what_is_shared_from_its_base() -> None:
    method = methods.build({"name": "fedavg-ft", "base": {"name": "fedbabu"}}, "method")
    assert method.shared == method.base.shared
    assert method.kept == method.base.kept
    assert method.wire().up["w"].part == method.shared
    assert (method.weighting, method.trains) == (method.base.weighting, method.base.trains)


def test_what_its_base_keeps_on_the_client_stays_there() -> None:
    class Half(FedBN):
        """Keeps its norms and has a global model all the same."""

        @property
        def has_global(self) -> bool:
            return True

    method = FedAvgFT(base=Half())
    assert (method.kept, method.shared) == (bn, ~bn)


@pytest.mark.parametrize("base", ["local", "fedper", "fedrep", "fedbn", "k-cluster"])
@pytest.mark.parametrize("name", ["fedavg-ft", "ecl", "lws", "tau-norm", "fedafa"])
def test_without_a_global_model_a_client_builds_on_its_own(ride: Riding, name: str, base: str) -> None:
    short = {"ecl": {"phase2_epochs": 1}, "tau-norm": {"tau": "search"}}.get(name, {"epochs": 1})
    method = {"name": name, "base": {"name": base}, **short}
    run = ride(method, data="skewed", model="mlp-bn" if base == "fedbn" else "mlp", rounds=8, **{"split.heldout": 1})
    assert run.world.method.everyone == (base == "local")
    assert not run.world.method.has_global
    assert run.result["global"] is None
    assert run.result["personal"]["accuracy"] > 0.2
    assert run.result["heldout"]["accuracy"] is not None


def test_tuning_starts_from_the_clients_own_head() -> None:
    """Two clients of fedper with the same data and other heads are tuned to other models."""
    home, ends = by_hand.resident(), []
    for number in (0.0, 0.5):
        client = by_hand.client(home, by_hand.some(12), memory=Memory(seen=1))  # it has trained before
        client.live.put(head, torch.full_like(client.live.get(head)[0], number))
        FedAvgFT(base=FedPer(), epochs=1).finish(client)
        ends.append(client.memory.tuned)
    assert not torch.allclose(ends[0].get(head)[0], ends[1].get(head)[0], atol=0.05)


def test_tuning_uses_the_loss_of_the_base() -> None:
    home, data = by_hand.resident(bias=False), by_hand.some(labels=[0, 1, 0, 1])  # class 2 is missing
    client = by_hand.client(home, data)
    FedAvgFT(base=FedRS(alpha=0.0), epochs=1).finish(client)
    row = slice(home.layout.n_weights - by_hand.WIDTH, home.layout.n_weights)
    assert torch.equal(client.memory.tuned.flat[row], home.initial.flat[row])


def test_two_of_them_do_not_share_the_base_that_is_their_default() -> None:
    one, other = (methods.build({"name": "fedavg-ft"}, "method") for _ in range(2))
    one.bind(Task(buffers="local"))
    assert one.kept != nothing
    assert other.kept == nothing
