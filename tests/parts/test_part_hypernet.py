"""Hypernetworks that weigh models layer by layer, against autograd and numbers computed by hand."""

import pytest
import torch

import by_hand
from polyfed.parts.hypernet import Hypernetwork, layers_of, mixed, shares_of, slopes_of


def hypernetwork(seed: int = 0, **sizes: int) -> Hypernetwork:
    torch.manual_seed(seed)
    return Hypernetwork(**{"layers": 3, "clients": 4, "embedding": 5, "hidden": 6} | sizes)


def test_a_layer_is_a_module_with_all_its_floats() -> None:
    layers = layers_of(by_hand.resident(bn=True).layout)
    names = [sorted(e.name.rpartition(".")[2] for e in layer) for layer in layers]
    assert names.count(["bias", "running_mean", "running_var", "weight"]) == 2
    assert names.count(["bias", "weight"]) == 3
    assert len(layers) == 5


def test_weights_are_not_negative_and_come_from_three_layers() -> None:
    made = hypernetwork()
    weights = made()
    assert weights.shape == (3, 4)
    assert (weights >= 0).all()
    assert (weights == 0).any()
    assert (weights > 0).any()
    first, second, third = (made.perceptron[i] for i in (0, 2, 4))
    by_hand_made = torch.relu(third(torch.relu(second(torch.relu(first(made.embedding))))))
    assert torch.equal(weights.flatten(), by_hand_made)


def test_its_values_make_it_again() -> None:
    made, other = hypernetwork(), hypernetwork(1)
    kept = made.values()
    again = Hypernetwork(3, 4, 5, 6, values=kept)
    assert torch.equal(again(), made())
    assert not torch.equal(other(), made())
    again.descend(again(), torch.ones(3, 4), 0.1)
    assert torch.equal(kept, made.values())  # what it was made of is not changed
    assert not torch.equal(again.values(), kept)


@pytest.mark.parametrize(("own", "instead"), [(2, [0.0, 0.0, 1.0]), (None, [1 / 3] * 3)])
def test_shares_add_up_to_one_and_a_dead_layer_takes_its_own_model(own: int | None, instead: list[float]) -> None:
    found = shares_of(torch.tensor([[1.0, 3.0, 0.0], [0.0, 0.0, 0.0]]), own)
    assert found[0].tolist() == [0.25, 0.75, 0.0]
    assert found[1].tolist() == pytest.approx(instead)


def test_every_layer_is_mixed_by_its_own_shares() -> None:
    home = by_hand.resident(bn=True)
    layers = layers_of(home.layout)
    models = [by_hand.as_params(home, value) for value in (1.0, 3.0)]
    share = torch.linspace(0, 1, len(layers))
    made = mixed(layers, models, torch.stack([1 - share, share], 1))
    for layer, each in zip(layers, share.tolist(), strict=True):
        for entry in layer:  # weights and statistics alike
            assert made.flat[entry.start : entry.stop].tolist() == pytest.approx(
                [1 + 2 * each] * (entry.stop - entry.start)
            )
    assert models[0].flat.unique().tolist() == [1.0]  # nobody's model is touched


def test_slopes_and_descent_are_those_of_autograd() -> None:
    """phi <- phi - lr d<mixed(phi), -change> / d phi, where autograd goes through every weight of the mixture."""
    home = by_hand.resident()
    layers, generator = layers_of(home.layout), torch.Generator().manual_seed(3)
    models = [by_hand.as_params(home, torch.randn(home.layout.size, generator=generator)) for _ in range(4)]
    change = torch.randn(home.layout.size, generator=generator)
    ours, theirs = (hypernetwork(layers=len(layers)) for _ in range(2))
    ours.descend(shares_of(ours(), 0), slopes_of(layers, models, change), 0.1)

    shares, total = shares_of(theirs(), 0), torch.zeros(())
    for layer, each in zip(layers, shares, strict=True):
        for entry in layer:
            here = slice(entry.start, entry.stop)
            whole = sum(s * model.flat[here] for s, model in zip(each, models, strict=True))
            total = total - (whole * change[here]).sum()
    torch.optim.SGD(theirs.parameters(), lr=0.1).zero_grad()
    total.backward()
    torch.optim.SGD(theirs.parameters(), lr=0.1).step()
    torch.testing.assert_close(ours.values(), theirs.values(), rtol=1e-4, atol=1e-6)
    assert not torch.equal(ours.values(), hypernetwork(layers=len(layers)).values())


def test_statistics_have_no_part_in_the_slopes() -> None:
    home = by_hand.resident(bn=True)
    layers, change = layers_of(home.layout), torch.zeros(home.layout.size)
    change[home.layout.n_weights :] = 1.0
    assert slopes_of(layers, [by_hand.as_params(home, 2.0)], change).abs().sum() == 0
    change[: home.layout.n_weights] = 1.0
    found = slopes_of(layers, [by_hand.as_params(home, 2.0)], change)[:, 0]
    assert found.tolist() == [-2.0 * sum(e.stop - e.start for e in layer if e.kind == "weight") for layer in layers]
