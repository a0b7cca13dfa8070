"""What crosses the wire, for every method: only what is declared, bytes as methods.md 15 has them, nothing personal."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from riding import Ride, leaks, learnt
from small import SMALL

from polyfed.methods.base import methods
from polyfed.params import bn, body, everything, head

Riding = Callable[..., Ride]
NAMES = [name for name in methods.names() if ":" not in name]


def small(ride: Riding, name: str, **keys: Any) -> Ride:
    own = dict(SMALL.get(name, {}))
    model = own.pop("model.name", "mlp")
    return ride({"name": name}, data="skewed", **{"model": model, "rounds": 2} | own | keys)


@pytest.mark.parametrize("name", NAMES)
def test_only_what_is_declared_crosses_the_wire(ride: Riding, name: str) -> None:
    run = small(ride, name)
    wire = run.world.method.wire()
    for seen in run.of("train"):
        for message, fields in ((seen.down, wire.down), (seen.up, wire.up)):
            beside = {f"{n}.integers" for n, f in fields.items() if f.part is not None}
            assert set(message) <= set(fields) | beside
            assert {n for n, f in fields.items() if not f.optional} <= set(message)
            for n, field in fields.items():
                if field.part is not None and n in message:
                    assert len(message[n]) == run.layout.length(field.part)
    assert run.result["rejected"] == {}
    for seen in run.of("evaluate") + run.of("finish"):
        assert len(seen.up) == 0  # after training nothing ever comes up


# floats down and up for each participating client and round, of P, P_b = P - P_h and P - #BN (methods.md 15)
FLOATS: dict[str, Callable[[int, int, int], tuple[int, int]]] = {
    **dict.fromkeys(
        ["fedavg", "fedprox", "ditto", "fedrs", "fedphp", "map", "ditto-rs", "fedcrc", "ecl", "fedavg-ft"],
        lambda p, p_b, no_bn: (p, p),
    ),
    **dict.fromkeys(["scaffold", "sca-rs", "sca-map"], lambda p, p_b, no_bn: (2 * p, 2 * p)),
    **dict.fromkeys(["fedper", "fedrep", "fedbabu"], lambda p, p_b, no_bn: (p_b, p_b)),
    "fedbn": lambda p, p_b, no_bn: (no_bn, no_bn),
    "k-cluster": lambda p, p_b, no_bn: (2 * p, p),
    "local": lambda p, p_b, no_bn: (0, 0),
}
NUMBERS = {"k-cluster": 1}  # up, beside the floats


@pytest.mark.parametrize("name", FLOATS)
def test_bytes_are_those_of_the_accounting(ride: Riding, name: str) -> None:
    """On a model without buffers, where P is all there is."""
    run = ride({"name": name}, data="skewed", model="mlp", rounds=2)
    layout = run.layout
    assert layout.size == layout.n_weights
    p, p_b = layout.size, layout.length(body)
    down, up = FLOATS[name](p, p_b, p)
    for seen in run.of("train"):
        assert (seen.down.nbytes, seen.up.nbytes) == (4 * down, 4 * up + 8 * NUMBERS.get(name, 0))
    trained, finished = run.of("train"), run.of("finish")
    assert len(trained) == 8
    spent = run.result["bytes"]
    assert spent["up"] == sum(s.up.nbytes for s in trained)
    assert spent["down"] == sum(s.down.nbytes for s in trained + finished)
    table = run.result.records("training")
    assert (int(table["bytes_down"].sum()), int(table["bytes_up"].sum())) == (8 * 4 * down, spent["up"])


@pytest.mark.parametrize("name", ["ecl", "fedavg-ft"])
def test_what_is_done_after_the_last_round_costs_one_model_each(ride: Riding, name: str) -> None:
    """Phase II: P once to each of the K clients, 0 up."""
    run = ride({"name": name}, data="skewed", model="mlp", rounds=2)
    assert [(s.client, s.down.nbytes, s.up.nbytes) for s in run.of("finish")] == [
        (k, 4 * run.layout.size, 0) for k in range(4)
    ]
    assert all(torch.equal(s.down.w, run.params.flat) for s in run.of("finish"))


@pytest.mark.parametrize(
    ("name", "part"), [("fedavg", everything), ("fedper", body), ("fedrep", body), ("fedbabu", body), ("fedbn", ~bn)]
)
def test_with_batch_norm_the_buffers_of_the_shared_slice_come_too(ride: Riding, name: str, part: Any) -> None:
    run = ride({"name": name}, data="skewed", model="mlp-bn", rounds=2)
    layout = run.layout
    expected = 4 * layout.length(part) + 8 * layout.length(part, integers=True)
    assert layout.size > layout.n_weights
    assert {(s.down.nbytes, s.up.nbytes) for s in run.of("train")} == {(expected, expected)}


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("mupfl", "distfl", "distfl-paper", "distfl-official")])
def test_with_local_buffers_no_statistic_is_sent(ride: Riding, name: str) -> None:
    run = ride({"name": name}, data="skewed", rounds=2, buffers="local", **{"model": "mlp-bn"} | _method_keys(name))
    layout, initial = run.layout, run.initial
    for seen in run.of("train"):
        assert not [n for n in [*seen.down, *seen.up] if n.endswith(".integers")]
        if "w" in seen.up:
            assert len(seen.up.w) <= layout.n_weights
    kept = run.train(2, 0).memory()
    if name != "local":
        statistics = kept["personal"][-len(initial.buffers) :]
        assert not leaks(learnt(statistics, initial.buffers), run.train(2, 0).up)


def _method_keys(name: str) -> dict[str, Any]:
    return {k: v for k, v in SMALL.get(name, {}).items() if k.startswith("method.")}


# ---- what is personal, by value


SECRETS: dict[str, Callable[[Any, Ride], list[torch.Tensor]]] = {
    "fedper": lambda memory, run: [memory["personal"]],
    "fedrep": lambda memory, run: [memory["personal"]],
    "fedbn": lambda memory, run: [memory["personal"]],
    "local": lambda memory, run: [memory["personal"]],
    "fedcrc": lambda memory, run: [memory["personal_head"]],
    "ditto": lambda memory, run: [memory["personal_model"].flat],
    "ditto-rs": lambda memory, run: [memory["personal_model"].flat],
    "map": lambda memory, run: [memory["hpm"].flat],
    "fedphp": lambda memory, run: [memory["hpm"].flat] if memory["times"] > 1 else [],  # at first it is the upload
    "sca-map": lambda memory, run: [memory["hpm"].flat],
}  # SCAFFOLD's control is no secret: the server has the sum of its changes


@pytest.mark.parametrize("name", SECRETS)
def test_what_is_personal_never_leaves_its_client(ride: Riding, name: str) -> None:
    """Not to the server and, through it, not to another client: neither under its name nor by its values."""
    model = "mlp-bn" if name == "fedbn" else "mlp"
    run = ride({"name": name}, data="skewed", model=model, rounds=3)
    trained = run.of("train")
    checked = 0
    for seen in trained:
        for secret in SECRETS[name](seen.memory(), run):
            known = [t for t in seen.down.tensors().values() if t.dtype == torch.float32] + [run.initial.flat]
            values = learnt(secret, *known)
            assert len(values) > 0.2 * secret.numel(), "there is something to leak"
            for other in run.seen:
                assert not leaks(values, other.down)
                assert not leaks(values, other.up)
            checked += 1
    assert checked >= 8
    secret_names = set(trained[-1].memory())
    assert not secret_names & {n for s in run.seen for n in [*s.down, *s.up]}


@pytest.mark.parametrize("name", ["ecl", "fedavg-ft", "fedbabu"])
def test_what_is_made_after_the_last_round_stays(ride: Riding, name: str) -> None:
    run = ride({"name": name}, data="skewed", model="mlp", rounds=2)
    for seen in run.of("finish"):
        memory = seen.memory()
        assert len(memory) > 0
        for secret in memory.tensors().values():
            if secret.dtype != torch.float32 or not len(values := learnt(secret, run.params.flat)):
                continue
            assert not any(leaks(values, message) for s in run.seen for message in (s.down, s.up))


def test_the_leak_detector_detects(ride: Riding) -> None:
    """FedAvg's trained head is in its upload: were it personal, the test above would see it."""
    run = ride("fedavg", data="skewed", model="mlp", rounds=3)
    seen = run.train(2, 1)
    trained = torch.zeros(run.layout.size)
    trained.copy_(seen.up.w)
    start, stop = run.layout.ranges(head)[0]
    values = learnt(trained[start:stop], seen.down.w)
    assert leaks(values, seen.up)
    assert not leaks(values, seen.down)
    assert not leaks(np.float32([1234.5]), seen.up)
