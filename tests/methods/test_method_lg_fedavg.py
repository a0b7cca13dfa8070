"""LG-FedAvg (Liang et al. 2020): bodies stay, the head is averaged."""

from collections.abc import Callable
from pathlib import Path

import torch
from riding import Ride
from torch import nn

import by_hand
from polyfed.methods.fedper import FedPer
from polyfed.methods.lg_fedavg import LGFedAvg
from polyfed.models.base import Net
from polyfed.params import body, head

Riding = Callable[..., Ride]


def test_it_sends_what_fedper_keeps_and_keeps_what_fedper_sends(ride: Riding) -> None:
    for layout in (by_hand.resident(bn=True).layout, ride("fedavg").layout):
        ours, theirs = ([e.name for e in layout.entries if m.shared.test(e)] for m in (LGFedAvg(), FedPer()))
        assert not set(ours) & set(theirs)
        assert {*ours, *theirs} == {e.name for e in layout.entries}
        assert all(name.startswith("head.") for name in ours)


def test_its_first_round_is_fedavgs_in_two_pieces(ride: Riding) -> None:
    """Everybody starts alike: the body that stays and the head that is sent are those of FedAvg's upload."""
    one, other = (ride(name, data="skewed", model="mlp-bn") for name in ("lg-fedavg", "fedavg"))
    for k in range(4):
        whole = one.initial.copy()
        whole.put(body, one.train(1, k).memory().personal)
        whole.put(head, one.train(1, k).up.w)
        assert torch.equal(whole.flat, other.train(1, k).up.w)
    assert torch.equal(one.train(2, 0).down.w, other.down_whole(other.train(2, 0)).get(head)[0])
    assert not torch.equal(one.train(2, 0).up.w, other.down_whole(other.train(3, 0)).get(head)[0])


def test_the_clients_body_answers_under_the_shared_head(ride: Riding) -> None:
    run = ride("lg-fedavg", data="skewed")
    for k in range(4):
        expected = run.params.copy()
        expected.put(body, run.train(3, k).memory().personal)
        flat = torch.cat([p.detach().flatten() for p in run.result.client(k).model.parameters()])
        assert torch.equal(flat, expected.flat)
    assert run.result["global"] is None
    assert torch.equal(run.params.get(body)[0], run.initial.get(body)[0])  # the server never sees one


def test_a_newcomer_trains_a_body_under_the_shared_head(ride: Riding) -> None:
    run = ride("lg-fedavg", data="skewed", rounds=2, **{"split.heldout": 1})
    (out,) = run.world.federation.heldout
    (seen,) = run.of("finish")  # nobody else has anything to finish
    assert seen.client == out
    assert seen.numbers["steps"] > 0
    made = by_hand.as_params(run.world.resident, seen.live)
    assert torch.equal(made.get(head)[0], run.params.get(head)[0])
    assert not torch.equal(made.get(body)[0], run.initial.get(body)[0])


def test_the_warm_start_of_the_paper_is_a_run_to_start_from(ride: Riding) -> None:
    first: Path = ride("fedavg", data="skewed", rounds=2).result.path
    run, trained = ride("lg-fedavg", data="skewed", rounds=1, init=str(first)), ride("fedavg", data="skewed", rounds=2)
    assert torch.equal(run.initial.flat, trained.params.flat)
    assert torch.equal(run.train(1, 0).down.w, trained.params.get(head)[0])


def test_a_network_without_a_body_shares_everything() -> None:
    home = by_hand.resident(make=lambda: Net(nn.Flatten(), nn.Identity(), nn.Linear(by_hand.INTO, by_hand.CLASSES)))
    assert home.layout.is_whole(LGFedAvg().shared)
