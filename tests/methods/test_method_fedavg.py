"""FedAvg, the base of all: what the default hooks do, local buffers, and a client that never trained."""

from collections.abc import Callable

import pytest
import torch
from riding import SIZES, Ride, spoiling

import by_hand
from polyfed.message import Message
from polyfed.methods.base import Method, methods, part_message
from polyfed.methods.fedavg import FedAvg
from polyfed.methods.fedper import FedPer
from polyfed.params import buffers, everything, head, nothing, weights

Riding = Callable[..., Ride]


def train_sizes(run: Ride) -> list[int]:
    return [len(client.train) for client in run.world.federation.clients]


def test_the_server_makes_the_sample_weighted_mean(ride: Riding) -> None:
    """w <- sum_k n_k / n w_k: n_k are training samples."""
    run = ride("fedavg", data="skewed", rounds=1)
    n = torch.tensor(train_sizes(run), dtype=torch.float64)
    assert n.tolist() != SIZES["skewed"]  # some are held out for tests
    rows = torch.stack([run.train(1, k).up.w.double() for k in range(4)])
    torch.testing.assert_close(run.params.flat.double(), (n / n.sum()) @ rows, rtol=1e-5, atol=1e-6)


def test_uniform_weighting_is_a_key_of_the_run(ride: Riding) -> None:
    run = ride("fedavg", data="skewed", rounds=1, weighting="uniform")
    rows = torch.stack([run.train(1, k).up.w for k in range(4)])
    torch.testing.assert_close(run.params.flat, rows.mean(0), rtol=1e-5, atol=1e-6)


def test_everybody_is_sent_the_shared_model_of_the_round(ride: Riding) -> None:
    run = ride("fedavg", data="skewed", rounds=2)
    for k in range(4):
        assert torch.equal(run.train(1, k).down.w, run.initial.flat)
        assert torch.equal(run.train(2, k).down.w, run.train(2, 0).down.w)
    assert not torch.equal(run.train(2, 0).down.w, run.initial.flat)


def test_integer_buffers_ride_beside_and_are_never_averaged(ride: Riding) -> None:
    run = ride("fedavg", data="skewed", model="mlp-bn", rounds=1)
    counts = [run.train(1, k).up["w.integers"].tolist() for k in range(4)]
    assert len({tuple(c) for c in counts}) > 1  # clients took other numbers of steps
    assert run.params.integers.tolist() == counts[0]


def test_nothing_is_remembered_and_everybody_answers_with_the_global_model(ride: Riding) -> None:
    run = ride("fedavg", data="skewed", rounds=2)
    assert all(seen.after is None for seen in run.seen)
    assert not run.of("finish")
    assert run.result["personal"] == run.result["global_local"]


# ---- local buffers


def test_with_local_buffers_statistics_stay_with_their_client(ride: Riding) -> None:
    run = ride("fedavg", data="skewed", model="mlp-bn", rounds=2, buffers="local")
    n = run.layout.n_weights
    assert torch.equal(run.params.buffers, run.initial.buffers)  # the server never hears of them
    for k in range(4):
        one, two = run.train(1, k), run.train(2, k)
        assert (len(one.up.w), len(two.down.w)) == (n, n)
        kept = one.memory()["personal"]
        assert torch.equal(kept, one.live[n:])
        assert not torch.equal(kept, run.initial.buffers)
        assert two.before == one.after


def test_what_is_kept_and_what_is_shared_cover_the_model() -> None:
    method = FedAvg()
    assert (method.kept, method.shared) == (nothing, everything)
    home = by_hand.resident(bn=True)
    for kind in (FedAvg, FedPer):
        for where in (None, "shared", "local"):
            method = kind()
            by_hand.server(home, [1], method, buffers=where)
            both = home.layout.length(method.kept) + home.layout.length(method.shared)
            assert both == home.layout.size
            assert home.layout.length(method.kept & method.shared) == 0
            assert (home.layout.length(method.shared & buffers) == 0) == (where == "local")
            assert home.layout.length(weights & method.kept) == (18 if kind is FedPer else 0)


# ---- the hooks


def test_every_registered_method_says_what_it_is() -> None:
    for spec in (methods.get(name) for name in methods.names() if ":" not in name):
        assert spec.paper, spec.name
        assert spec.__doc__, spec.name


def test_a_term_in_parameters_reaches_the_gradient_only_where_there_is_one() -> None:
    class Pushing(Method):
        def correct(self, client, grad) -> None:
            grad.add_(1.0)

    home = by_hand.resident()
    client = by_hand.client(home, by_hand.some(6), train={"lr": 0.1})
    FedAvg().local(client, steps=1)
    plain = home.params.weights.clone()
    client = by_hand.client(home, by_hand.some(6), train={"lr": 0.1})
    Pushing().local(client, steps=1)
    torch.testing.assert_close(home.params.weights, plain - 0.1, rtol=1e-5, atol=1e-6)


def test_an_upload_is_a_copy() -> None:
    home = by_hand.resident()
    client = by_hand.client(home, by_hand.some(6))
    upload = FedAvg().train(client)
    before = upload.w.clone()
    client.live.flat.zero_()
    assert torch.equal(upload.w, before)


def test_part_message_leaves_out_integers_there_are_none_of() -> None:
    assert set(part_message("w", torch.zeros(2), torch.zeros(0, dtype=torch.int64))) == {"w"}
    assert set(part_message("w", torch.zeros(2), torch.zeros(1, dtype=torch.int64))) == {"w", "w.integers"}


def test_a_rejected_upload_does_not_touch_the_model(ride: Riding) -> None:
    run = ride(spoiling(FedAvg, who=1, when=1), data="skewed", rounds=1)
    assert run.result["rejected"] == {"nonfinite": 1}
    n = torch.tensor(train_sizes(run), dtype=torch.float64)[[0, 2, 3]]
    rows = torch.stack([run.train(1, k).up.w.double() for k in (0, 2, 3)])
    torch.testing.assert_close(run.params.flat.double(), (n / n.sum()) @ rows, rtol=1e-5, atol=1e-6)


# ---- a client that never trained


@pytest.mark.parametrize("name", ["fedper", "fedrep", "fedbn"])
def test_a_client_that_never_trained_learns_its_personal_slice_at_the_end(ride: Riding, name: str) -> None:
    model = "mlp-bn" if name == "fedbn" else "mlp"
    run = ride(name, data="skewed", model=model, rounds=2, **{"split.heldout": 1})
    (out,) = run.world.federation.heldout
    finished = {seen.client: seen for seen in run.of("finish")}
    assert set(finished) == {out}  # the others have nothing to do, and are sent nothing for it
    assert out not in {seen.client for seen in run.of("train")}
    assert finished[out].numbers["steps"] > 0
    kept = run.world.method.kept
    mine, first = finished[out].memory()["personal"], run.initial.get(kept)[0]
    assert not torch.equal(mine, first)
    shared = run.world.method.shared
    live = run.initial.copy()
    live.flat.copy_(finished[out].live)
    got, sent = live.get(shared)[0], finished[out].down.w
    assert torch.equal(got, sent)  # only its own slice was trained
    assert run.result["heldout"]["accuracy"] is not None


def test_a_new_client_of_a_method_without_a_personal_part_does_nothing() -> None:
    home = by_hand.resident()
    client = by_hand.client(home, by_hand.some(6))
    FedAvg().finish(client)
    assert client.steps == 0
    FedPer().finish(client)
    assert client.steps > 0
    memory = by_hand.Memory()
    memory.keep_personal(*home.initial.get(head))
    known = by_hand.client(home, by_hand.some(6), memory=memory)
    FedPer().finish(known)
    assert known.steps == 0


def test_messages_are_messages(ride: Riding) -> None:
    assert all(isinstance(seen.up, Message) for seen in ride("fedavg", data="skewed", rounds=2).seen)
