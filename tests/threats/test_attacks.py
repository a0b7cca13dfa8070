"""Attacks: who attacks and when, what they send, and how their success is measured."""

from typing import Any

import numpy as np
import pytest
import torch

from polyfed.data.samples import Pool, Samples
from polyfed.errors import UsageError
from polyfed.measure.metrics import accuracy
from polyfed.threats.attacks import Attack, Collusion, Place, attacks
from polyfed.threats.attacks.collusion import alie_z
from polyfed.threats.attacks.samples import DISTFL

HERE = Place(seed=3, round=2, client=1)


def made(name: str, **keys: Any) -> Attack:
    built = attacks.build({"name": name, "count": 1, **keys}, "attack")
    assert isinstance(built, Attack)
    return built


def images(n: int = 12, classes: int = 10, side: int = 8) -> Samples:
    """Grey images with labels 0, 1, 2, ..."""
    x = torch.full((n, 1, side, side), 7, dtype=torch.uint8)
    return Samples(Pool(x, torch.arange(n) % classes), torch.arange(n))


# ---- who, and when


@pytest.mark.parametrize("keys", [{}, {"count": 2, "fraction": 0.2}, {"clients": [1], "count": 1}])
def test_exactly_one_number_of_attackers(keys: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"exactly one of attack.clients, attack.count and attack.fraction"):
        attacks.build({"name": "noise", **keys}, "attack")


def test_who_attacks_is_a_function_of_the_seed() -> None:
    share = attacks.build({"name": "noise", "fraction": 0.25}, "attack")
    chosen = share.attackers(0, range(20))
    assert len(chosen) == 5
    assert chosen == share.attackers(0, range(20)) != share.attackers(1, range(20))
    assert len(attacks.build({"name": "noise", "fraction": 0.01}, "attack").attackers(0, range(20))) == 1
    assert attacks.build({"name": "noise", "clients": [4, 2]}, "attack").attackers(0, range(20)) == {2, 4}


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"count": 3}, "every client would attack"),
        ({"count": 4}, "attack.count=4 is more than the 3 clients that train"),
        ({"clients": [7]}, "attack.clients names client 7, which does not train"),
        ({"clients": []}, "no client would attack"),
        ({"fraction": 0.9}, "every client would attack"),
    ],
)
def test_nobody_or_everybody_is_refused(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        attacks.build({"name": "noise", **keys}, "attack").attackers(0, range(3))


@pytest.mark.parametrize(
    ("rounds", "acting"),
    [
        ("all", [1, 2, 3, 4, 5]),
        ("last", [5]),
        ("never", []),
        ([2, 9], [2]),
        ({"from": 2, "to": 3}, [2, 3]),
        ({"from": 4}, [4, 5]),
    ],
)
def test_rounds_of_an_attack(rounds: Any, acting: list[int]) -> None:
    assert [r for r in range(1, 6) if made("noise", rounds=rounds).acts(r, 5)] == acting


def test_an_attack_is_built_again_from_its_dump() -> None:
    for keys in ({"rounds": {"from": 2, "to": 3}}, {"mapping": {0: 1, 1: 0}}):
        spec = made("label-flip", **keys)
        again = attacks.build(spec.dump(), "attack")
        assert again == spec


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("label-flip", {"mapping": "distfl", "share": 1.0, "boost": 1.0}),
        ("backdoor", {"target": 0, "share": 0.5, "boost": 1.0}),
        ("noise", {"s": 1.0, "add": False}),
        ("sign-flip", {"scale": 1.0}),
        ("ipm", {"eps": 0.5, "knows": "all"}),
        ("alie", {"z": "auto", "knows": "all"}),
        ("mimic", {"target": "first", "knows": "all"}),
        ("free-rider", {"s": 0.0, "decay": 1.0}),
    ],
)
def test_keys_of_attacks_and_their_defaults(name: str, keys: dict[str, Any]) -> None:
    who = {"name": name, "clients": None, "count": 1, "fraction": None, "rounds": "all"}
    assert made(name).dump() == who | keys


# ---- data


def test_the_mapping_of_distfl_twice_changes_nothing() -> None:
    table = made("label-flip").map(10, 0)  # type: ignore[attr-defined]
    assert table[table].tolist() == list(range(10))
    assert table.tolist() == [DISTFL.get(c, c) for c in range(10)]


@pytest.mark.parametrize(
    ("mapping", "found"), [("next", [1, 2, 3, 0]), ("reverse", [3, 2, 1, 0]), ({0: 3}, [3, 1, 2, 3])]
)
def test_mappings(mapping: Any, found: list[int]) -> None:
    assert made("label-flip", mapping=mapping).map(4, 0).tolist() == found  # type: ignore[attr-defined]


def test_a_random_mapping_has_no_fixed_point() -> None:
    for seed in range(20):
        table = made("label-flip", mapping="random").map(5, seed)  # type: ignore[attr-defined]
        assert sorted(table) == list(range(5))
        assert (table != np.arange(5)).all()


def test_flipped_labels_lie_in_a_pool_of_their_own() -> None:
    samples = images()
    before = samples.y.clone()
    flipped = made("label-flip").poison(samples, 10, 0, 1)
    assert flipped.y.tolist() == [4, 5, 6, 7, 0, 1, 2, 3, 8, 9, 4, 5]
    assert torch.equal(samples.y, before)
    assert torch.equal(flipped.take(torch.arange(12))[0], samples.take(torch.arange(12))[0])
    half = made("label-flip", share=0.5).poison(samples, 10, 0, 1)
    assert int((half.y != before).sum()) <= 6
    assert made("label-flip", share=0).poison(samples, 10, 0, 1) is samples


def test_of_masks_the_pixels_of_owned_classes_are_flipped() -> None:
    mask = torch.tensor([[[0, 1], [2, 255]], [[1, 1], [0, 2]]], dtype=torch.uint8)
    table = torch.arange(256, dtype=torch.uint8)
    table[2] = 254  # the background
    pool = Pool(torch.zeros(2, 3, 2, 2, dtype=torch.uint8), mask)
    samples = Samples(pool, torch.arange(2), owned=torch.tensor([0, 1]), table=table)
    flipped = made("label-flip", mapping="next").poison(samples, 3, 0, 1)
    assert flipped.y.tolist() == [[[1, 2], [254, 255]], [[2, 2], [1, 254]]]
    assert flipped.y.dtype == torch.uint8
    assert flipped.owned is samples.owned
    assert pool.y is mask


def test_a_backdoor_is_a_white_square() -> None:
    samples = images()
    stamped = made("backdoor", share=1.0, target=3).poison(samples, 10, 0, 1)
    assert stamped.y.tolist() == [3] * 12
    first = stamped.pool.x[0, 0]
    assert first[5:7, 5:7].tolist() == [[255, 255], [255, 255]]
    assert int((first == 255).sum()) == 4
    assert int((stamped.pool.x[3] == 255).sum()) == 0  # of the target class already
    assert int(samples.pool.x.max()) == 7
    again = made("backdoor").stamp(made("backdoor").stamp(samples))  # type: ignore[arg-type]
    once = made("backdoor").stamp(samples)
    assert again is not None
    assert once is not None
    assert torch.equal(again.pool.x, once.pool.x)


@pytest.mark.parametrize(
    ("name", "keys", "data", "sentence"),
    [
        ("label-flip", {}, (5, True, (1, 8, 8)), "swaps the first 8 classes, and these data have 5"),
        ("label-flip", {"mapping": {0: 12}}, (10, True, (1, 8, 8)), "names class 12"),
        ("label-flip", {"mapping": {1: 1}}, (10, True, (1, 8, 8)), "changes no class"),
        ("backdoor", {}, (10, False, (9, 128)), "stamps images, and these data hold none"),
        ("backdoor", {"target": 10}, (10, True, (1, 8, 8)), "attack.target=10 is no class"),
    ],
)
def test_data_an_attack_is_not_made_for(name: str, keys: dict[str, Any], data: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        made(name, **keys).check(*data)


# ---- uploads

SENT, TRAINED = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 0.0])


def test_formulas_of_uploads() -> None:
    assert made("sign-flip").own(TRAINED, SENT, HERE).tolist() == [0, 4]
    assert made("sign-flip", scale=3).own(TRAINED, SENT, HERE).tolist() == [-2, 8]
    assert made("label-flip", boost=10).own(TRAINED, SENT, HERE).tolist() == [11, -18]
    assert made("label-flip").own(TRAINED, SENT, HERE) is TRAINED  # no arithmetic
    place = Place(3, 2, 1, replaces=50.0)
    assert made("label-flip", boost="auto").own(TRAINED, SENT, place).tolist() == [51, -98]
    assert torch.equal(made("free-rider").own(TRAINED, SENT, HERE), SENT)


def test_noise_is_keyed_and_has_its_size() -> None:
    sent, trained = torch.ones(20000), torch.zeros(20000)
    noise = made("noise", s=2).own(trained, sent, HERE)
    assert torch.equal(noise, made("noise", s=2).own(trained, sent, HERE))
    for other in (Place(3, 3, 1), Place(3, 2, 4), Place(5, 2, 1)):
        assert not torch.equal(noise, made("noise", s=2).own(trained, sent, other))
    assert float(noise.mean()) == pytest.approx(1, abs=0.1)
    assert float(noise.std()) == pytest.approx(2, abs=0.05)
    assert float(made("noise", add=True).own(trained, sent, HERE).mean()) == pytest.approx(0, abs=0.05)
    fading = made("free-rider", s=2, decay=2).own(trained, sent, HERE)
    assert float(fading.std()) == pytest.approx(0.5, abs=0.02)


# ---- together


@pytest.mark.parametrize(("n", "m", "z"), [(50, 12, 0.3360), (20, 4, 0.1573), (10, 3, 0.1800), (50, 20, 0.8416)])
def test_z_of_a_little_is_enough(n: int, m: int, z: float) -> None:
    assert alie_z(n, m) == pytest.approx(z, abs=5e-5)


def test_plans_of_colluders() -> None:
    honest = [torch.tensor([1.0, 4.0]), torch.tensor([3.0, 4.0])]

    def plan(name: str, **keys: Any) -> list[list[float]]:
        spec = made(name, **keys)
        assert isinstance(spec, Collusion)
        return [u.tolist() for u in spec.plan(honest, 4, 2)]

    assert plan("ipm") == [[-1, -2]]
    assert plan("ipm", eps=0) == [[0, 0]]
    assert plan("alie", z=2) == [[0, 4]]  # mean 2, deviation 1; no deviation in the second
    assert plan("mimic") == [[1, 4]]
    assert plan("mimic", target="spread") == [[1, 4], [3, 4]]


# ---- success


def test_success_of_flipped_labels() -> None:
    counts = np.array([[8, 2], [1, 9]])
    assert accuracy(counts) == pytest.approx(0.85)
    assert made("label-flip", mapping={0: 1, 1: 0}).success(counts, None, 0) == pytest.approx(0.15)
    assert made("label-flip", mapping={0: 1}).success(counts, None, 0) == pytest.approx(0.2)
    assert made("noise").success(counts, None, 0) is None


def test_success_of_a_backdoor() -> None:
    stamped = np.array([[5, 0, 0], [3, 1, 0], [1, 0, 5]])
    assert made("backdoor").success(stamped, stamped, 0) == pytest.approx(0.4)
    assert made("backdoor", target=1).success(stamped, stamped, 0) == 0
