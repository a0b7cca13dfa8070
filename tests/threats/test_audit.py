"""The leakage audit: labels and images from one upload, and what the personal part and noise hide."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from polyfed.api import config_of
from polyfed.engine.work import World
from polyfed.errors import UsageError
from polyfed.methods.base import methods
from polyfed.models.base import Net
from polyfed.threats.audit import Search, Seen, decibels, hits, images_of, labels_of, psnr, variation


def net_of(classes: int = 4) -> Net:
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Sigmoid())
    return Net(trunk, nn.Identity(), nn.Linear(32, classes))


def seen_of(net: Net, x: torch.Tensor, y: torch.Tensor, part: str = "") -> Seen:
    gradients = torch.autograd.grad(F.cross_entropy(net(x), y), list(net.parameters()))
    names = [name for name, _ in net.named_parameters()]
    return Seen(net, {n: g for n, g in zip(names, gradients, strict=True) if n.startswith(part)})


def test_labels_follow_from_the_heads_gradient() -> None:
    net, x = net_of(), torch.rand(3, 1, 8, 8)
    for label in range(4):
        assert labels_of(seen_of(net, x[:1], torch.tensor([label])), 1) == [label]
    found = labels_of(seen_of(net, x, torch.tensor([3, 0, 2])), 3)
    assert found is not None
    assert sorted(found) == [0, 2, 3]
    assert labels_of(seen_of(net, x, torch.tensor([3, 0, 2]), "trunk."), 3) is None
    assert hits([1, 1, 2], [1, 2, 2]) == 2


def test_the_image_is_the_one_with_that_gradient() -> None:
    net, x = net_of(), torch.rand(1, 1, 8, 8)
    seen = seen_of(net, x, torch.tensor([2]))
    bounds = torch.zeros(1, 8, 8), torch.ones(1, 8, 8)
    found, cosine = images_of(seen, [2], (1, 1, 8, 8), bounds, Search(200, tv=0.0))
    assert cosine > 0.999
    assert psnr(found, x)[0] > 30
    dark, _ = images_of(seen, [2], (1, 1, 8, 8), (bounds[0], bounds[1] * 0.25), Search(20, tv=0.0))
    assert float(dark.max()) <= 0.25
    hidden, _ = images_of(seen_of(net, x, torch.tensor([2]), "head."), [2], (1, 1, 8, 8), bounds, Search(50))
    assert psnr(hidden, x)[0] < psnr(found, x)[0] - 10


def test_labels_of_several_follow_from_the_bias_and_the_likeliest_comes_again() -> None:
    """By hand: the rows of the weights speak for class 1, the biases for classes 2 and 0."""
    gradient = {"head.weight": torch.tensor([[0.0, 1], [-3, 0], [1, 1]]), "head.bias": torch.tensor([-1.0, 2, -2])}
    seen = Seen(net_of(), gradient)
    assert labels_of(seen, 1) == [1]
    assert labels_of(seen, 2) == [2, 0]
    assert labels_of(seen, 5) == [2, 0, 1, 2, 2]
    assert labels_of(Seen(net_of(), {"head.weight": gradient["head.weight"]}), 2) == [1, 0]


def searched(tv: float) -> tuple[list[torch.Tensor], list[float], torch.Tensor, float]:
    """Every image that a search of 16 steps tried, its cosine, and what the search gave."""
    net, x = net_of(), torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    seen, tried, cosines = seen_of(net, x, torch.tensor([2])), [], []
    hook = net.register_forward_pre_hook(lambda _, given: tried.append(given[0].detach().clone()))
    wide = torch.full((1, 8, 8), 10.0)
    found, cosine = images_of(seen, [2], (1, 1, 8, 8), (-wide, wide), Search(16, tv=tv))
    hook.remove()
    target = torch.cat([g.flatten() for g in seen.gradient.values()])
    for image in tried:
        here = seen_of(net, image, torch.tensor([2])).gradient
        cosines.append(float(F.cosine_similarity(torch.cat([g.flatten() for g in here.values()]), target, dim=0)))
    return tried[1:], cosines[1:], found, cosine  # the first only asks for the number of classes


def test_a_search_goes_by_signs_and_slows_down_three_times() -> None:
    """Adam on signs: at first by the rate, then by it or, where the sign has changed, by a nineteenth of it."""
    tried, *_ = searched(tv=0.01)
    moves = [(after - before).abs().flatten() for before, after in pairwise(tried)]
    assert torch.allclose(moves[0], torch.full((64,), 0.1), atol=1e-5)
    second = moves[1] / 0.1
    assert (
        torch.isclose(second, torch.tensor(1.0), atol=1e-3) | torch.isclose(second, torch.tensor(1 / 19), atol=1e-3)
    ).all()
    for step, move in enumerate(moves):
        rate = 0.1 ** (1 + sum(step >= fall for fall in (6, 10, 14)))
        assert 0.5 * rate < float(move.max()) < 1.01 * rate


def test_a_search_keeps_the_image_with_the_best_cosine() -> None:
    tried, cosines, found, cosine = searched(tv=-50.0)  # it looks for what is rough, and goes astray
    best = cosines.index(max(cosines))
    assert best < len(cosines) - 1
    assert torch.equal(found, tried[best])
    assert cosine == pytest.approx(cosines[best], abs=1e-5)


def test_total_variation_makes_images_smooth() -> None:
    rough, smooth = searched(tv=0.0)[0][-1], searched(tv=50.0)[0][-1]
    assert float(variation(smooth)) < 0.8 * float(variation(rough))
    assert float(variation(torch.tensor([[[[0.0, 0.0], [1.0, 1.0]]]]))) == 1.0  # down as well as across


def test_decibels_and_pairs() -> None:
    a, b = torch.zeros(1, 1, 2, 2), torch.full((1, 1, 2, 2), 0.1)
    assert psnr(a, b)[0] == pytest.approx(20.0, abs=1e-4)
    two = torch.cat([a, torch.ones_like(a)])
    assert psnr(two.flip(0), two) == [100.0, 100.0]
    assert len(psnr(two[:1], two)) == 1  # the nearest of several
    assert decibels(1.0) == 0
    assert float(variation(torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]]))) == 1.0


def test_an_audit_of_a_run(trial, cli) -> None:
    """One image of a plain mlp is read; a personal head hides its label; noise hides the image."""
    result = trial({"rounds": 1, "model.width": 0.2})
    before = result.summary["fingerprint"]
    said = cli("audit", str(result.path), "--client", "1", "--steps", "200", "--tv", "0", "--fresh", "--json")
    assert said.code == 0, said.err
    told = json.loads(said.out)
    assert told["one_step"]["psnr"][0] > 30
    assert told["one_step"]["label_hits"] == 1
    assert told["one_step"]["psnr"][0] > told["grey_psnr"][0] + 10
    assert told["one_step"]["psnr"][0] > told["usual"]["psnr"][0]
    names = sorted(path.name for path in (result.path / "audit").iterdir())
    assert names == [f"client-1{end}" for end in ("-one-step.png", "-originals.png", "-usual.png", ".json")]
    assert Image.open(result.path / "audit" / "client-1-originals.png").height >= 64
    assert result.summary["fingerprint"] == before
    text = cli("audit", str(result.path), "--client", "1", "--steps", "2")
    assert "one step on one batch: labels" in text.out
    assert "round 2" in text.out


def test_the_originals_are_the_clients_own_pixels(trial) -> None:
    changes = {"rounds": 1, "model.width": 0.2}
    result = trial(changes)
    result.audit(1, steps=1, fresh=True)
    held = World(config_of(trial.keys(changes))).federation.clients[1].train
    pixels = held.pool.x[held.rows[:1]][0, 0].int()
    drawn = torch.from_numpy(np.array(Image.open(result.path / "audit" / "client-1-originals.png"))).int()
    factor = len(drawn) // len(pixels)
    assert int((drawn[::factor, ::factor] - pixels).abs().max()) <= 1
    assert int(pixels.max()) > 200


def test_noise_on_updates_hides_the_image_too(trial) -> None:
    psnr_of = []
    for privacy in ({}, {"privacy.name": "nominal", "privacy.epsilon": 0.01}):
        told = trial({"rounds": 1, "model.width": 0.2, **privacy}).audit(0, steps=100, fresh=True, tv=0.0)
        psnr_of.append(told["one_step"]["psnr"][0])
    assert psnr_of[1] < psnr_of[0] - 10


@pytest.mark.extras
def test_what_is_hidden(trial) -> None:
    pytest.importorskip("opacus", reason="skipped: no opacus")
    steps = 60
    personal = trial({"rounds": 1, "method.name": "fedper"}).audit(0, steps=steps)
    assert personal["one_step"]["labels"] == "hidden: the head is personal"
    assert personal["personal"] == "head"
    noisy = trial({"rounds": 1, "privacy.name": "dp-sgd", "privacy.noise": 1.0}).audit(0, steps=steps, fresh=True)
    plain = trial({"rounds": 1}).audit(0, steps=steps, fresh=True)
    assert noisy["one_step"]["psnr"][0] < plain["one_step"]["psnr"][0] - 3
    assert "sends no model" in trial({"rounds": 1, "method.name": "local"}).audit(0)["note"]


def test_wrong_uses_of_an_audit(trial) -> None:
    result = trial.kept({"rounds": 1})
    with pytest.raises(UsageError, match="there is no client 9"):
        result.audit(9)
    with pytest.raises(UsageError, match="ask for 1 to"):
        result.audit(0, images=10_000)
    (result.path / "deploy.json").write_text("{}")
    with pytest.raises(UsageError, match="real sites are not here"):
        result.audit(0)
    (result.path / "deploy.json").unlink()


@pytest.mark.slow
def test_uploads_of_every_method_are_looked_at_or_have_nothing_to_read(trial) -> None:
    without: set[str] = set()
    read: set[str] = set()
    hidden: set[str] = set()
    for name in (spec.name for spec in methods if spec.__module__.startswith("polyfed.")):
        small = {"method.steps": 1} if name.startswith("distfl") else {}
        adapters = {"model.lora.rank": 2} if name == "fedlora" else {}
        result = trial({**small, **adapters, "method.name": name, "rounds": 1, "split.public": 20})
        told = result.audit(0, steps=1)
        if "note" in told:
            without.add(name)
        else:
            assert len(told["one_step"]["psnr"]) == 1, name
            hidden |= {name} if "personal" in told["one_step"]["labels"] else set()
            read |= {name} if told["one_step"]["label_hits"] else set()
    assert without == {"fedproto", "local"}
    assert {"fedper", "fedrep", "fedbabu"} <= hidden
    assert {"fedavg", "fedprox", "ditto", "distfl"} <= read
    assert not hidden & read
