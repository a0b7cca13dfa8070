"""FedROD (Chen and Chao 2022): a generic head under balanced softmax, and a personal one that disturbs nothing."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from riding import Ride

import by_hand
from polyfed.message import Memory
from polyfed.methods.fedavg import FedAvg
from polyfed.methods.fedrod import FedROD, TwoHeads
from polyfed.models.base import Net
from polyfed.params import everything, head
from polyfed.parts.mixture import Personal
from polyfed.parts.resident import Batch, Resident

Riding = Callable[..., Ride]
TRAIN = {"lr": 0.3, "batch": 4}


def home(method: FedROD, **shape: Any) -> Resident:
    return by_hand.resident(make=lambda: method.build(by_hand.tiny_net(**shape)))


def trained(labels: Sequence[int], method: FedROD, made: Resident) -> Any:
    client = by_hand.client(made, by_hand.some(labels=labels), train=TRAIN | {"epochs": 3})
    return method.train(client), client


# ---- the two losses


def test_each_loss_reaches_its_own_weights_only() -> None:
    """Balanced softmax for body and generic head; for the personal head CE(z_g + z_p), with z_g and h fixed."""
    method = FedROD()
    made = home(method)
    made.params.put(method.personal, torch.randn(18, generator=torch.Generator().manual_seed(1)))
    start, data = made.params.copy(), by_hand.some(labels=[0, 0, 0, 1, 0, 1])
    client = by_hand.client(made, data, received=start)
    index = torch.arange(6)
    net: Any = made.model.requires_grad_(True)
    loss = method.loss(client, Batch(net, data.pool.x, data.y, index, data))
    shift = torch.tensor([4.0, 2.0, 0.0]).log()  # the third class, which it does not hold, leaves the softmax
    h = net.features(data.pool.x)
    balanced = F.cross_entropy(net.head(h) + shift, data.y)
    plain = F.cross_entropy((net.head(h) + net.own(h)).detach(), data.y)
    torch.testing.assert_close(loss, balanced + plain)
    shared, own = [p for n, p in net.named_parameters() if not n.startswith("own.")], list(net.own.parameters())
    found = torch.autograd.grad(loss, [*shared, *own])
    for mine, expected in zip(found, torch.autograd.grad(balanced, shared), strict=False):
        torch.testing.assert_close(mine, expected)
    fixed_h, fixed_z = h.detach(), net.head(h).detach()
    alone = F.cross_entropy(fixed_z + net.own(fixed_h), data.y)
    for mine, expected in zip(found[len(shared) :], torch.autograd.grad(alone, own), strict=True):
        torch.testing.assert_close(mine, expected)


@pytest.mark.parametrize("bn", [False, True])
def test_with_one_sample_of_each_class_its_upload_is_fedavgs_bit_for_bit(bn: bool) -> None:
    """log 1 = 0: nothing is added to the logits."""
    upload, _ = trained([0, 1, 2], FedROD(), home(FedROD(), bn=bn))
    plain = by_hand.resident(bn=bn)
    client = by_hand.client(plain, by_hand.some(labels=[0, 1, 2]), train=TRAIN | {"epochs": 3})
    assert torch.equal(upload.w, FedAvg().train(client).w)
    assert not torch.equal(upload.w, plain.initial.flat)


def test_with_equal_counts_it_is_fedavgs_up_to_rounding() -> None:
    """log n is the same for all: a constant that softmax does not see."""
    upload, _ = trained([0, 1, 2] * 4, FedROD(), home(FedROD()))
    plain = by_hand.resident()
    client = by_hand.client(plain, by_hand.some(labels=[0, 1, 2] * 4), train=TRAIN | {"epochs": 3})
    torch.testing.assert_close(upload.w, FedAvg().train(client).w, rtol=1e-4, atol=1e-6)
    skewed, _ = trained([0, 0, 0, 0, 1, 2], FedROD(), home(FedROD()))
    client = by_hand.client(plain, by_hand.some(labels=[0, 0, 0, 0, 1, 2]), train=TRAIN | {"epochs": 3})
    assert not torch.allclose(skewed.w, FedAvg().train(client).w, atol=1e-3)


def test_the_generic_row_of_a_class_that_is_absent_does_not_move() -> None:
    made = home(FedROD())
    upload, client = trained([0, 1, 0, 1], FedROD(), made)
    before, after = made.initial.get(head)[0].view(-1)[:15].view(3, 5), client.live.get(head)[0][:15].view(3, 5)
    assert torch.equal(before[2], after[2])
    assert not torch.equal(before[0], after[0])
    assert len(upload.w) == made.layout.size - 18


# ---- who answers


def test_the_personal_head_is_added_and_the_network_itself_is_generic() -> None:
    torch.manual_seed(0)
    net = by_hand.tiny_net()
    made = TwoHeads(net).eval()
    x = by_hand.some(6).pool.x
    assert torch.equal(made(x), net(x))
    assert torch.equal(made.personal(x), net(x))  # zero at first
    with torch.no_grad():
        made.own.bias.copy_(torch.tensor([1.0, 2.0, 3.0]))
    assert torch.equal(made(x), net(x))
    torch.testing.assert_close(Personal(made)(x), net(x) + torch.tensor([1.0, 2.0, 3.0]))
    assert TwoHeads(by_hand.tiny_net(bias=False)).own.bias is None


@pytest.mark.parametrize(("p_init", "times"), [("zeros", 1.0), ("copy", 2.0)])
def test_where_a_personal_head_starts(p_init: str, times: float) -> None:
    """At zero, or as the generic head that the client is sent when it is new; later it goes on from its own."""
    method = FedROD(p_init=p_init)
    made = home(method)
    sent = by_hand.as_params(made, torch.randn(made.layout.size, generator=torch.Generator().manual_seed(2)))
    sent.put(method.personal, torch.zeros(18))
    client = by_hand.client(made, by_hand.some(6), received=sent)
    method.adapt(client)
    x = by_hand.some(6).pool.x
    torch.testing.assert_close(method.predictor(client)(x), times * client.model(x))
    known = by_hand.client(made, by_hand.some(6), received=sent, memory=Memory(anything=1))
    method.adapt(known)
    assert torch.equal(known.live.flat, sent.flat)


def test_the_global_model_is_generic_wherever_it_is_asked(ride: Riding) -> None:
    run = ride("fedrod", data="skewed")
    x = run.world.federation.global_test.take(torch.arange(20))[0]
    resident, generic = run.world.resident, run.params
    for site in (None, 1):
        if site is None:
            model = run.result.global_model().model
        else:  # a client with a personal head of its own around what it received
            job = run.train(3, site)
            received = run.params.copy()
            received.put(FedROD().personal, job.memory().personal)
            client = by_hand.client(resident, by_hand.some(6), received=received)
            model = FedROD().global_predictor(client)
        expected = resident.frozen(generic, False).model
        plain = Net(expected.trunk, expected.last, expected.head)
        with torch.inference_mode():
            assert torch.equal(model(x), plain(x))
    assert run.result["global"] is not None


def test_a_client_answers_with_the_latest_generic_head_and_its_own(ride: Riding) -> None:
    run = ride("fedrod", data="skewed")
    for k in range(4):
        expected = run.params.copy()
        expected.put(FedROD().personal, run.train(3, k).memory().personal)
        model = run.result.client(k).model
        assert isinstance(model, Personal)
        assert torch.equal(torch.cat([p.detach().flatten() for p in model.parameters()]), expected.get(everything)[0])


def test_a_newcomer_trains_a_personal_head_on_the_global_model(ride: Riding) -> None:
    run = ride("fedrod", data="skewed", rounds=2, **{"split.heldout": 1})
    (seen,) = run.of("finish")
    made = by_hand.as_params(run.world.resident, seen.live)
    assert torch.equal(made.get(FedROD().shared)[0], run.params.get(FedROD().shared)[0])
    assert made.get(FedROD().personal)[0].abs().sum() > 0
