"""Chunks: the same bits on any number of cores, in order, and no thread where none belongs."""

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polyfed.models.base import Net
from polyfed.parts import average as averaging
from polyfed.parts import chunks, cluster, invert, match
from polyfed.parts.average import average
from polyfed.parts.chunks import in_chunks, ranges
from polyfed.parts.cluster import inner_products
from polyfed.parts.invert import Goal, extract
from polyfed.parts.match import match_features
from polyfed.parts.resident import Resident


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def on_cores(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Computes something with a pool of its own of so many threads."""

    def run(count: int, work: Callable[[], Any]) -> Any:
        monkeypatch.setattr(chunks, "cores", lambda: count)
        monkeypatch.setattr(chunks, "_pool", None)
        made = work()
        if chunks._pool is not None:
            chunks._pool.shutdown()
        return made

    return run


def averaged() -> Tensor:
    return average(list(random(7, 1000)), torch.linspace(0.1, 0.3, 7), less=list(random(7, 1000, seed=1)))


def gram() -> Tensor:
    return inner_products(random(9, 500), side=16, less=random(9, 500, seed=1))


def a_model() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 3, 3), nn.Flatten(), nn.Linear(48, 5)
    return nn.Sequential(*layers).eval().requires_grad_(False)


def extracted() -> Tensor:
    model = a_model()
    layers = invert.activation_layers(model)
    sizes = [layer.weight.shape[0] for layer in layers]  # type: ignore[union-attr]
    goals = {m: Goal(random(n), random(n).square(), torch.arange(n)) for m, n in zip(layers, sizes, strict=True)}
    return extract(model, random(10, 1, 8, 8), goals, steps=4, lr=0.1)


def matched() -> Tensor:
    head = random(6, 5), random(6, seed=1)
    return match_features(random(6, 3, 5), random(6, 6, 6, seed=2), torch.arange(6), head, 5, 0.1, flat=False)


def lengths() -> Tensor:
    return cluster.cosines(random(9, 500), less=random(9, 500, seed=1))


def answered() -> Tensor:
    resident = Resident(lambda: Net(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)))
    models = [resident.initial.copy() for _ in range(3)]
    for number, model in enumerate(models):
        model.flat.copy_(random(len(model.flat), seed=number))
    frozen = resident.frozen(resident.initial, augmented=False)
    return torch.stack(invert.responses(frozen, models, random(10, 6), softness=2.0))


@pytest.mark.parametrize("work", [averaged, gram, extracted, matched, lengths, answered])
def test_the_number_of_cores_changes_no_bit(work: Any, on_cores: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(averaging, "BLOCK", 64)
    monkeypatch.setattr(match, "WORTH", 1)
    asked = []
    for module in (averaging, cluster, invert, match):
        monkeypatch.setattr(module, "in_chunks", lambda f, pieces: asked.append(len(pieces)) or in_chunks(f, pieces))
    one, two, five = (on_cores(count, work) for count in (1, 2, 5))
    assert torch.isfinite(one).all()
    assert torch.equal(one, two)
    assert torch.equal(one, five)
    assert max(asked) > 2, "there was something to share"
    third = len(asked) // 3
    assert asked[:third] == asked[third : 2 * third] == asked[2 * third :], "as many chunks on any number of cores"


def test_results_are_in_order_and_computed_with_one_thread_each(on_cores: Any) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        late = threading.Barrier(2)  # nobody is done before another has begun
        found = on_cores(2, lambda: in_chunks(lambda i: (late.wait(5), i, torch.get_num_threads()), [0, 1, 2, 3]))
        assert [each[1:] for each in found] == [(i, 1) for i in range(4)]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_single_piece_and_a_piece_of_a_piece_stay_where_they_are(on_cores: Any) -> None:
    here = threading.current_thread()
    assert on_cores(2, lambda: in_chunks(lambda _: threading.current_thread(), [0])) == [here]

    def inner(_: int) -> bool:
        me = threading.current_thread()
        return me is not here and in_chunks(lambda _: threading.current_thread(), [0, 1]) == [me, me]

    assert on_cores(1, lambda: in_chunks(inner, [0, 1])) == [True, True]


def test_gradients_are_on_or_off_as_they_are_for_the_caller(on_cores: Any) -> None:
    assert on_cores(2, lambda: in_chunks(lambda _: torch.is_grad_enabled(), [0, 1])) == [True, True]
    with torch.no_grad():
        assert on_cores(2, lambda: in_chunks(lambda _: torch.is_grad_enabled(), [0, 1])) == [False, False]


def test_the_first_failure_is_raised_when_all_are_done(on_cores: Any) -> None:
    done = []

    def fails(i: int) -> None:
        done.append(i)
        if i in (1, 2):
            raise ValueError(f"chunk {i}")

    with pytest.raises(ValueError, match="chunk 1"):
        on_cores(2, lambda: in_chunks(fails, [0, 1, 2, 3]))
    assert sorted(done) == [0, 1, 2, 3]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_has_a_pool_of_its_own() -> None:
    assert in_chunks(abs, [-1, -2]) == [1, 2]
    child = os.fork()
    if child == 0:
        fine = chunks._pool is None and in_chunks(abs, [-1, -2]) == [1, 2]
        os._exit(0 if fine else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert chunks._pool is not None


@pytest.mark.parametrize(
    ("length", "least", "most", "sizes"),
    [(10, 4, 8, [4, 4, 2]), (10, 4, 2, [8, 2]), (3, 4, 2, [3]), (16, 1, 4, [4] * 4), (0, 4, 2, [])],
)
def test_ranges(length: int, least: int, most: int, sizes: list[int]) -> None:
    found = ranges(length, least, most)
    assert [r.stop - r.start for r in found] == sizes
    assert [i for r in found for i in range(r.start, r.stop)] == list(range(length))
