"""Methods on masks: a pixel is a row, and whoever cannot learn masks says so."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

import masked
import polyfed
from polyfed.config import make_config, unflatten
from polyfed.data.samples import Pool, Samples
from polyfed.data.sources.arrays import Arrays
from polyfed.engine.work import Job, World
from polyfed.errors import UsageError
from polyfed.measure.counts import confusion
from polyfed.message import Message
from polyfed.methods import methods
from polyfed.models import Net, models
from polyfed.models.base import spread
from polyfed.params import head
from polyfed.parts.fit import balanced
from polyfed.parts.losses import cross_entropy, nll
from polyfed.parts.match import _pixels_of, at_pixels, class_gradients, head_gradients, linear
from polyfed.parts.resident import Batch, Frozen

REFUSED = {
    "distfl", "distfl-official", "distfl-paper", "ecl", "ecl-algorithm1", "fedafa", "feddf", "fedproto", "fedrod",
    "flda", "lws",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(methods.names()))
def test_every_method_learns_masks_or_says_why_not(name: str, tmp_path: Path) -> None:
    keys = masked.settings(method=name, out=tmp_path / "run")
    if name == "fedlora":
        with pytest.raises(UsageError, match="trains low-rank adapters, and the model has none"):
            polyfed.run(**keys)  # and there is no linear layer in its body that could have one
        return
    if name in REFUSED:
        with pytest.raises(UsageError, match=f"method '{name}' cannot learn masks: "):
            polyfed.run(**keys)
        return
    summary = polyfed.run(**keys).summary
    assert (summary["failed"], summary["rejected"], summary["excluded"]) == ({}, {}, {})
    assert 0 <= summary["personal"]["miou"] <= summary["personal"]["accuracy"] <= 1


@pytest.mark.parametrize("method", [*sorted(REFUSED), {"name": "tau-norm", "tau": "search"}], ids=str)
def test_who_cannot_learn_masks_says_so_before_anything_is_built(method: Any) -> None:
    name = method if isinstance(method, str) else method["name"]
    with pytest.raises(UsageError, match=f"method '{name}' cannot learn masks: [a-z]"):
        World(make_config(unflatten(masked.settings(method=method))))


def test_a_run_on_masks_records_iou(tmp_path: Path) -> None:
    result = polyfed.run(**masked.settings(method="fedavg", out=tmp_path / "run", rounds=1))
    assert set(result.summary["global"]) == {"accuracy", "balanced", "miou", "head", "mid", "tail"}
    counts = np.load(tmp_path / "run" / "counts.npz")
    assert [counts[name].dtype.name for name in ("global", "final_personal")] == ["int64", "int64"]
    for table, column in (("rounds", "miou"), ("clients", "miou"), ("classes", "iou")):
        assert (tmp_path / "run" / f"{table}.csv").read_text().splitlines()[0].endswith(f",{column}")


@pytest.mark.parametrize("name", ["mupfl", "creff", "fedlc", "map", "fedaws"])
def test_methods_learn_a_background_that_is_a_class(name: str, tmp_path: Path) -> None:
    keys = masked.settings(method=name, data=masked.source(background="class"), rounds=1, out=tmp_path / "run")
    result = polyfed.run(**keys, **{"eval.classes": True})
    assert (result.summary["failed"], result.summary["rejected"], result.summary["excluded"]) == ({}, {}, {})
    assert 0 <= result.summary["personal_classes"]["miou"] <= 1
    assert result.counts()["global"].shape == (masked.CLASSES, masked.CLASSES)


def test_a_batch_without_rows_is_skipped_and_counted(tmp_path: Path) -> None:
    x, y = masked.scenes(15)
    y[:3] = 255
    keys = masked.settings(method="fedavg", data=Arrays.hold(x[:12], y[:12], x[12:], y[12:]), rounds=1)
    keys = {key: value for key, value in keys.items() if key != "split.beta"}
    keys |= {"split.partition": "iid", "split.clients": 1, "split.test": "none", "train.batch": 1}
    polyfed.run(**keys | {"model": "lraspp-small-gn"}, out=tmp_path / "run")
    told = pandas.read_csv(tmp_path / "run" / "training.csv")
    assert (told["steps"].tolist(), told["skipped_batches"].tolist()) == ([9], [3])


def test_models_and_labels_must_fit(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'resnet8' answers for whole images, and the labels of arrays are masks"):
        polyfed.run(**masked.settings(model="resnet8", out=tmp_path / "run"))
    with pytest.raises(UsageError, match="'lraspp-small' answers for pixels, and digits has one label per sample"):
        polyfed.run(data="digits", model="lraspp-small", out=tmp_path / "run")


def test_every_client_s_model_must_fit(tmp_path: Path) -> None:
    model = {"name": "lraspp-small", "per_client": {0: "resnet8"}}
    with pytest.raises(UsageError, match="'resnet8' answers for whole images, and the labels of arrays are masks"):
        polyfed.run(**masked.settings(method="local", model=model, out=tmp_path / "run"))


def test_attackers_flip_pixels_and_stamp_none(tmp_path: Path) -> None:
    flip = {"name": "label-flip", "mapping": "next", "count": 1}
    keys = masked.settings(method="fedavg", attack=flip, rounds=1, out=tmp_path / "run")
    summary = polyfed.run(**keys).summary
    assert (summary["failed"], summary["rejected"], summary["excluded"]) == ({}, {}, {})
    rows = (tmp_path / "run" / "rounds.csv").read_text().splitlines()
    assert any(row.startswith("1,personal_attackers,") and not row.endswith(",") for row in rows)  # the last is miou
    with pytest.raises(UsageError, match="attack 'backdoor' cannot attack masks: it calls whole images its target"):
        polyfed.run(**masked.settings(attack={"name": "backdoor", "count": 1}, out=tmp_path / "other"))


def test_private_steps_are_for_one_label_per_sample(tmp_path: Path) -> None:
    keys = {"model": "lraspp-small-gn", "privacy": {"name": "dp-sgd", "noise": 1.0}, "out": tmp_path / "run"}
    with pytest.raises(UsageError, match="privacy=dp-sgd bounds the gradient of each sample's one label"):
        polyfed.run(**masked.settings(**keys))


# ---- batches and losses


def test_batches_of_balanced_classes_are_for_one_label_per_sample() -> None:
    with pytest.raises(UsageError, match="drawn by the labels of whole samples, and here are masks"):
        balanced(samples(), np.random.default_rng(0))


def net() -> Net:
    torch.manual_seed(0)
    return models.build("lraspp-small", "model").build((3, masked.HIGH, masked.WIDE), masked.CLASSES).eval()


def samples(count: int = 4, **how: Any) -> Samples:
    x, y = masked.scenes(count)
    pool = Pool(torch.from_numpy(x).permute(0, 3, 1, 2), torch.from_numpy(y))
    return Samples(pool, torch.arange(count), **how)


def batch_of(model: Net, on: Samples) -> Batch:
    index = torch.arange(len(on))
    return Batch(model, *on.take(index), index, on)


def test_pixels_with_a_label_are_rows() -> None:
    model, on = net(), samples()
    batch = batch_of(model, on)
    labelled = (masked.HIGH - 1) * masked.WIDE
    assert len(batch) == 4
    assert batch.y.shape == (4 * labelled,)
    assert batch.features.shape == (4 * 2 * 2, 80)
    whole = model(batch.x).permute(0, 2, 3, 1)[:, 1:].reshape(-1, masked.CLASSES)  # the first line has no labels
    torch.testing.assert_close(batch.logits, whole)
    frozen = Frozen(model, None, False)  # type: ignore[arg-type]
    torch.testing.assert_close(frozen.logits(batch), whole)


def rows(y: list[int], owned: list[int]) -> Any:
    on = Samples(Pool(torch.empty(1), torch.empty(1)), torch.arange(1), owned=torch.tensor(owned))
    return type("Rows", (), {"y": torch.tensor(y), "on": on})()


@pytest.mark.parametrize(
    ("label", "owned", "loss"),
    [
        (0, [0], 2.407606),
        (254, [0], 0.094344),
        (1, [0, 1], 1.407606),
        (254, [0, 1], 0.407606),
        (2, [0, 1, 2], 0.407606),
    ],
)
def test_the_background_is_some_class_of_the_others(label: int, owned: list[int], loss: float) -> None:
    z = torch.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    found = nll(z, rows([label], owned))
    assert float(found.detach()) == pytest.approx(loss, abs=1e-6)
    found.backward()
    assert z.grad is not None
    assert torch.isfinite(z.grad).all()


def test_who_owns_everything_has_cross_entropy() -> None:
    model = net()
    plain, owning = batch_of(model, samples()), batch_of(model, samples(owned=torch.arange(masked.CLASSES)))
    torch.testing.assert_close(cross_entropy(plain), cross_entropy(owning))


def test_pixels_without_a_label_are_not_counted() -> None:
    table = confusion(net(), samples(), masked.CLASSES, 3)
    assert int(table.sum()) == 4 * (masked.HIGH - 1) * masked.WIDE
    assert table.sum(1).tolist() == torch.bincount(samples().y.flatten().long())[: masked.CLASSES].tolist()


# ---- gradients of pixels (PKCF, CReFF)


def test_class_gradients_are_of_all_pixels_where_these_are_few() -> None:
    """A class that covers no more than 64 pixels of a picture is taken whole: eq. 16, at features between the map's."""
    model, (x, y) = net(), masked.scenes(2)
    y[:] = np.repeat([0, 1, 2, 0], 4)  # a bar of 12 x 4 pixels each, two of them of class 0
    on = Samples(Pool(torch.from_numpy(x).permute(0, 3, 1, 2), torch.from_numpy(y)), torch.arange(2))
    found = class_gradients(model, on, torch.tensor([1, 2]), 32, 1, np.random.default_rng(0))
    with torch.no_grad():
        wide = spread(model.features(on.take(torch.arange(2))[0]).permute(0, 3, 1, 2), (12, 16)).permute(0, 2, 3, 1)
    for z, c in zip(found, (1, 2), strict=True):
        rows = wide[on.y == c]
        assert len(rows) == 2 * 12 * 4
        expected = head_gradients(rows, torch.full((len(rows),), c), linear(model.head))
        torch.testing.assert_close(z, expected, atol=1e-5, rtol=1e-4)


def test_of_many_pixels_64_are_taken() -> None:
    mask = torch.zeros(12, 16, dtype=torch.uint8)
    mask[:, :10] = 1
    taken = _pixels_of(1, mask, np.random.default_rng(0))
    assert taken.shape == (64, 2)
    assert len(taken.unique(dim=0)) == 64
    assert bool((mask[taken[:, 0], taken[:, 1]] == 1).all())


def test_features_of_single_pixels_are_those_of_the_spread_map() -> None:
    maps = torch.randn(3, 4, 5)
    wide = torch.nn.functional.interpolate(maps.permute(2, 0, 1)[None], (12, 16), mode="bilinear", align_corners=False)
    pixels = torch.tensor([[0, 0], [11, 15], [5, 7], [3, 14]])
    torch.testing.assert_close(at_pixels(maps, pixels, (12, 16)), wide[0][:, pixels[:, 0], pixels[:, 1]].T)


def test_class_gradients_are_of_owned_pixels_alone() -> None:
    model, on = net(), samples(6)
    found = class_gradients(model, on, torch.tensor([0, 2]), 2, 3, np.random.default_rng(0))
    assert found.shape == (2, masked.CLASSES, 81)
    for z, c in zip(found, (0, 2), strict=True):  # p - 1 < 0 for the class itself, p > 0 for the others
        assert [float(value) < 0 for value in z[:, -1]] == [k == c for k in range(masked.CLASSES)]


def test_clients_send_gradients_of_classes_they_own_alone_and_weigh_by_images() -> None:
    world = World(
        make_config(
            unflatten(
                masked.settings(method={"name": "creff", "draws": 1}, model="lraspp-small-gn", **{"split.test": "none"})
            )
        )
    )
    owned = world.federation.split.owned
    assert any(len(each) < masked.CLASSES for each in owned)
    start, retrained = (world.resident.initial.get(part)[0] for part in (world.method.shared, head))
    for client, own in enumerate(owned):
        known = world.do(Job("hello", client, 0), None)
        assert known.numbers["n"] == len(world.federation.clients[client].train) == 4, "pictures, not pixels"
        seen = world.federation.clients[client].counts
        assert known.counts["train"].tolist() == seen.tolist()
        assert set(seen.nonzero().flatten().tolist()) <= set(own.tolist())
        up = world.do(Job("train", client, 1, Message(w=start.clone(), head=retrained.clone())), None).up
        assert up["classes"].tolist() == seen.nonzero().flatten().tolist(), (
            "neither the background nor what has no label"
        )
        assert up["z"].shape == (len(up["classes"]), masked.CLASSES, world.resident.model.head.in_features + 1)


def test_features_of_a_client_s_pixels_are_not_kept() -> None:
    world = World(make_config(unflatten(masked.settings(method="fedrep", model="lraspp-small-gn"))))
    start = world.resident.initial.get(world.method.shared)[0]
    client = world.client(Job("train", 0, 1, Message(w=start)), None)
    assert client.features("head") is client.data
    frozen = client.frozen(client.received.w)
    frozen.logits(batch_of(client.model, client.data))
    assert not frozen._tables
