"""What crosses the wire, for every method: only what is declared, bytes as counted by hand, nothing personal."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import riding
import torch
from riding import Ride, leaks, learnt
from small import SMALL

from polyfed.engine import rounds
from polyfed.errors import RunFailed, UsageError
from polyfed.message import Field, Message, Wire
from polyfed.methods.base import Client, Method, Server, Upload, methods
from polyfed.params import bn, body, everything, head

Riding = Callable[..., Ride]
NAMES = [name for name in methods.names() if ":" not in name]
ON_TOP = ["ecl", "fedavg-ft", "lws", "tau-norm", "fedafa"]


def small(ride: Riding, name: str, **keys: Any) -> Ride:
    return ride({"name": name}, **_small_keys(name) | keys)


def _small_keys(name: str) -> dict[str, Any]:
    own = dict(SMALL.get(name, {}))
    model = own.pop("model.name", "mlp")
    return {"data": "skewed", "model": model, "rounds": 2} | own


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


@pytest.mark.parametrize("name", NAMES)
def test_everything_that_goes_up_has_a_limit(name: str) -> None:
    wire = methods.build({"name": name}, "method").wire()
    for field in wire.up.values():
        if field.kind == "integer":
            assert field.below is not None
        else:
            assert [field.against or field.like, field.bound, field.below] != [None] * 3
        assert {field.against, field.like} <= {None, *wire.down}


def test_a_method_that_sends_without_a_limit_does_not_start(tmp_path: Path) -> None:
    class Unlimited(Method):
        def wire(self) -> Wire:
            return super().wire().also(up={"more": Field("whatever", rows=("any",))})

    with pytest.raises(UsageError, match="the wire sets no limit to 'more', which clients send"):
        riding.ride(tmp_path / "run", Unlimited)


# floats down and up for each participating client and round, of P, P_b = P - P_h and P - #BN of the model as it is
# built without a method; what a method builds beside it is its own
FLOATS: dict[str, Callable[[int, int, int], tuple[int, int]]] = {
    **dict.fromkeys(
        ["fedavg", "fedprox", "ditto", "fedrs", "fedphp", "map", "ditto-rs", "fedcrc", *ON_TOP],
        lambda p, p_b, no_bn: (p, p),
    ),
    **dict.fromkeys(["scaffold", "sca-rs", "sca-map"], lambda p, p_b, no_bn: (2 * p, 2 * p)),
    **dict.fromkeys(["fedper", "fedrep", "fedbabu"], lambda p, p_b, no_bn: (p_b, p_b)),
    "fedbn": lambda p, p_b, no_bn: (no_bn, no_bn),
    "k-cluster": lambda p, p_b, no_bn: (2 * p, p),
    **dict.fromkeys(["pfedme", "per-fedavg", "fedrod", "flda", "pfedla"], lambda p, p_b, no_bn: (p, p)),
    "lg-fedavg": lambda p, p_b, no_bn: (p - p_b, p - p_b),
    "local": lambda p, p_b, no_bn: (0, 0),
    **dict.fromkeys(
        ["fednova", "fedopt", "feddyn", "moon", "fedmmd", "feddf", "fedaws", "fedlc"], lambda p, p_b, no_bn: (p, p)
    ),
}
NUMBERS = {"k-cluster": (0, 1), "fednova": (1, 1)}  # down and up, beside the floats


@pytest.mark.parametrize("name", FLOATS)
def test_bytes_are_those_of_the_accounting(ride: Riding, name: str) -> None:
    """On a model without buffers, where P is all there is."""
    run = ride({"name": name}, data="skewed", model="mlp", rounds=2, **_public(name))
    layout = ride("fedavg", data="skewed", model="mlp", rounds=2).layout
    assert layout.size == layout.n_weights
    p, p_b = layout.size, layout.length(body)
    floats, numbers = FLOATS[name](p, p_b, p), NUMBERS.get(name, (0, 0))
    down, up = (4 * f + 8 * n for f, n in zip(floats, numbers, strict=True))
    for seen in run.of("train"):
        assert (seen.down.nbytes, seen.up.nbytes) == (down, up)
    trained, finished = run.of("train"), run.of("finish")
    assert len(trained) == 8
    spent = run.result["bytes"]
    assert spent["up"] == sum(s.up.nbytes for s in trained)
    assert spent["down"] == sum(s.down.nbytes for s in trained + finished)
    table = run.result.records("training")
    assert (int(table["bytes_down"].sum()), int(table["bytes_up"].sum())) == (8 * down, spent["up"])


@pytest.mark.parametrize("name", FLOATS)
def test_the_catalogue_says_what_the_accounting_counts(ride: Riding, name: str) -> None:
    """The sizes in words, read off the wire, with a model's numbers in place of the words."""
    plain = ride("fedavg", data="skewed", model="mlp", rounds=2).layout
    public = {k: v for k, v in SMALL.get(name, {}).items() if k.startswith("split.")}
    built = ride({"name": name}, data="skewed", model="mlp", rounds=2, **public).layout
    wire = methods.build({"name": name}, "method").wire()
    parts = {f.size: f.part for f in [*wire.down.values(), *wire.up.values()] if f.part is not None}
    words = {"nothing": 0, "shared": plain.size, "P": plain.size} | {w: built.length(p) for w, p in parts.items()}
    found = []
    for way in ("down", "up"):
        text = wire.sizes(way).partition(", ")[0]
        times, word = (2, text[2:]) if text.startswith("2 ") else (1, text)
        found.append(times * words[word])
    assert tuple(found) == FLOATS[name](plain.size, plain.length(body), plain.size)


@pytest.mark.parametrize("name", ON_TOP)
def test_what_is_done_after_the_last_round_costs_one_model_each(ride: Riding, name: str) -> None:
    """Phase II: P once to each of the K clients, 0 up."""
    run = ride({"name": name}, data="skewed", model="mlp", rounds=2)
    assert [(s.client, s.down.nbytes, s.up.nbytes) for s in run.of("finish")] == [
        (k, 4 * run.layout.size, 0) for k in range(4)
    ]
    assert all(torch.equal(s.down.w, run.params.flat) for s in run.of("finish"))


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("fedavg", everything),
        ("fedper", body),
        ("fedrep", body),
        ("fedbabu", body),
        ("fedbn", ~bn),
        ("lg-fedavg", head),
    ],
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
    return {k: v for k, v in SMALL.get(name, {}).items() if k.startswith(("method.", "model.lora."))} | _public(name)


def _public(name: str) -> dict[str, Any]:
    """Samples for a server that cannot do without."""
    return {k: v for k, v in SMALL.get(name, {}).items() if k == "split.public"}


# ---- what is personal, by name


KEEPING = {  # keys under which a method keeps what it keeps only then
    "fedcrc": {"method.per_body": "local"},
    "mupfl": {"method.bavd_reset": "never"},
    "mupfl-paper": {"method.bavd_reset": "never"},
    "mupfl-printed": {"method.bavd_reset": "never"},
}


def kept_names(run: Ride) -> set[str]:
    """Every name that stood in a client's memory."""
    return {name for seen in run.of("train") + run.of("finish") for name in seen.memory()} - {"personal.integers"}


@pytest.mark.parametrize("name", NAMES)
def test_what_a_client_keeps_is_what_is_declared(ride: Riding, name: str) -> None:
    """Nothing undeclared is in a memory, and nothing is declared that no memory ever holds."""
    run = small(ride, name, **KEEPING.get(name, {}))
    declared, kept = run.world.method.remembers(), kept_names(run)
    assert {n for n in kept if not any(fnmatchcase(n, pattern) for pattern in declared)} == set()
    assert {pattern for pattern in declared if not any(fnmatchcase(n, pattern) for n in kept)} == set()
    assert run.result["keeps"] == declared


@pytest.mark.parametrize(("name", "conditional"), [("fedcrc", {"personal_body"}), ("mupfl", {"map_*"})])
def test_what_is_kept_under_a_condition_is_not_kept_without_it(ride: Riding, name: str, conditional: set[str]) -> None:
    run = small(ride, name)
    kept = kept_names(run)
    assert {p for p in run.world.method.remembers() if not any(fnmatchcase(n, p) for n in kept)} == conditional
    assert all(run.world.method.remembers()[pattern].startswith("where ") for pattern in conditional)


def test_a_composition_keeps_what_its_bases_keep() -> None:
    assert set(methods.build({"name": "sca-map"}, "method").remembers()) == {"control", "hpm", "times"}
    on_top = methods.build({"name": "fedavg-ft", "base": {"name": "ditto"}}, "method")
    assert set(on_top.remembers()) == {"personal_model", "tuned"}


def test_a_method_that_keeps_what_it_does_not_declare_is_told(tmp_path: Path) -> None:
    class Secretive(Method):
        def train(self, client: Client) -> Message:
            client.memory.secret = 1
            return super().train(client)

    with pytest.raises(RunFailed, match="put 'secret' into a client's memory without declaring it: add it"):
        riding.ride(tmp_path / "run", Secretive)


# ---- what is personal, by value


def unlike_the_upload(theta: torch.Tensor, run: Ride) -> torch.Tensor:
    """pFedMe's theta is w where the last batch says nothing of a weight: its other values."""
    sent = next(s.up.w for s in run.of("train") if torch.equal(s.memory().personal_model.flat, theta))
    return theta[theta != sent]


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
    **dict.fromkeys(["lg-fedavg", "fedproto", "fedrod", "flda"], lambda memory, run: [memory["personal"]]),
    "pfedme": lambda memory, run: [unlike_the_upload(memory["personal_model"].flat, run)],
}  # SCAFFOLD's control is no secret: the server has the sum of its changes


@pytest.mark.parametrize("name", SECRETS)
def test_what_is_personal_never_leaves_its_client(ride: Riding, name: str) -> None:
    """Not to the server and, through it, not to another client: neither under its name nor by its values."""
    model = "mlp-bn" if name == "fedbn" else "mlp"
    # enough steps that the second stage of MAP changes every weight the first one changed
    run = ride({"name": name}, data="skewed", model=model, rounds=3, **{"train.min_steps": 5})
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


@pytest.mark.parametrize("name", ["ecl", "fedavg-ft", "lws", "fedafa", "fedbabu"])
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


# ---- who needs only sums


class Sealed:
    """A message into which nobody may look, except to add all of a round's together."""

    def __init__(self, content: Message):
        self.content = content

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"merge looks into a single upload ({name})")

    __getitem__ = __contains__ = __iter__ = __getattr__


@contextmanager
def sealed_uploads() -> Iterator[None]:
    """Inside, the server can take averages over all uploads of a round and see nothing else of them."""
    real = Server.average

    def average(server: Server, uploads: Sequence[Upload], *how: Any, **more: Any) -> Any:
        assert [u.client for u in uploads] == [0, 1, 2, 3], "an average over some of them tells of single ones"
        return real(server, [replace(u, message=u.message.content) for u in uploads], *how, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Server, "average", average)
        patch.setattr(rounds, "Upload", lambda client, n, up, sent: Upload(client, n, Sealed(up), sent))
        yield


SUMMING = [name for name in NAMES if methods.build({"name": name}, "method").wire().only_sums]


@pytest.mark.parametrize("name", SUMMING)
def test_who_promises_to_need_only_sums_gets_the_same_model_from_sums(ride: Riding, tmp_path: Path, name: str) -> None:
    seen = small(ride, name)
    with sealed_uploads():
        blind = riding.ride(tmp_path / "run", {"name": name}, **_small_keys(name))
    assert blind.result.fingerprint == seen.result.fingerprint


@pytest.mark.parametrize("name", ["k-cluster", "distfl", "creff", "mupfl", "fedproto", "pfedla", "feddf"])
def test_who_needs_more_than_sums_does_not_promise_and_is_found_out(tmp_path: Path, name: str) -> None:
    assert name not in SUMMING
    with sealed_uploads(), pytest.raises(AssertionError, match="single"):
        riding.ride(tmp_path / "run", {"name": name}, **_small_keys(name))


def test_an_own_merge_inherits_no_promise() -> None:
    class Peeking(Method):
        def merge(self, server: Server, uploads: Sequence[Upload]) -> None:
            server.shared = server.model_of(uploads[0])

    assert Method().wire().only_sums
    assert not Peeking().wire().only_sums
