"""FedBN (Li et al. 2021): all of batch normalisation is personal, everything else averaged."""

from collections.abc import Callable

import torch
from riding import Ride

from polyfed.params import bn

Riding = Callable[..., Ride]


def test_norms_stay_and_the_rest_is_averaged(ride: Riding) -> None:
    run = ride("fedbn", data="skewed", model="mlp-bn", rounds=2)
    layout = run.layout
    assert layout.length(bn) == 4 * (10 + 10)  # weight, bias, mean and variance of two norms
    n = torch.tensor([len(c.train) for c in run.world.federation.clients], dtype=torch.float64)
    rows = torch.stack([run.train(2, k).up.w.double() for k in range(4)])
    torch.testing.assert_close(run.params.get(~bn)[0].double(), (n / n.sum()) @ rows, rtol=1e-5, atol=1e-6)
    assert torch.equal(run.params.get(bn)[0], run.initial.get(bn)[0])
    for seen in run.of("train"):
        assert len(seen.up.w) == len(seen.down.w) == layout.size - 80
        assert "w.integers" not in seen.up


def test_each_client_goes_on_with_its_own_norms(ride: Riding) -> None:
    run = ride("fedbn", data="skewed", model="mlp-bn", rounds=2)
    kept = [run.train(1, k).memory() for k in range(4)]
    assert len({tuple(m["personal"].tolist()) for m in kept}) == 4
    for k, memory in enumerate(kept):
        assert run.train(2, k).before == run.train(1, k).after
        steps = run.train(1, k).numbers["steps"] - run.train(1, k).numbers["eval_mode_steps"]
        assert memory["personal.integers"].tolist() == [steps] * 2  # counters are its own, too


def test_without_norms_it_is_fedavg(ride: Riding) -> None:
    one, other = ride("fedbn", data="skewed", model="mlp", rounds=2), ride("fedavg", data="skewed", rounds=2)
    assert torch.equal(one.params.flat, other.params.flat)
