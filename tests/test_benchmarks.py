"""The benchmarks: all sides do the same work, which is measured as said; with a wide guard on speed."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks import measure
from benchmarks.__main__ import others
from benchmarks.frozen import TOLERANCE, InName, difference
from benchmarks.layout import Layout, layouts
from benchmarks.limit import Loop, packed
from benchmarks.measure import Failed, Side, interleaved, last_words, once, paired, spread
from benchmarks.nets import NETS, build, formatted
from benchmarks.ours import turns as take_ours
from benchmarks.rivals.envs import pin
from benchmarks.speed import in_words, rate
from benchmarks.task import Task, write_task
from benchmarks.turns import take_turns

from polyfed.api import config_of
from polyfed.engine.threads import threads
from polyfed.parts.resident import features_from

TREE: dict[str, Any] = {
    "method": "fedavg",
    "data": {"name": "digits", "limit": 30},
    "model": "mlp",
    "split": {"partition": "dirichlet", "alpha": 0.5, "clients": 6, "test": "none"},
    "train": {"lr": 0.1, "batch": 8, "epochs": 1},
    "participation": 0.5,
}


def silent(text: str) -> None:
    """Nobody listens."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads on a busy machine wait for each other."""
    with threads(1):
        yield


# ---- all sides do the same work


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("model", NETS)
def test_plain_networks_are_the_zoos(model: str, channels_last: bool) -> None:
    """The limit and the rivals train the architecture that polyfed trains."""
    shape = {"har-cnn": (9, 128), "resnet8": (3, 32, 32)}.get(model, (1, 28, 28))
    section = {"name": model, "width": 1} if model == "resnet8" else {"name": model}
    ours = config_of(model=section).model.build(shape, 10)
    plain = build(model, shape, 10, channels_last)
    theirs = list(ours.parameters())
    assert [p.squeeze().shape for p in plain.parameters()] == [p.squeeze().shape for p in theirs]
    with torch.no_grad():
        for mine, other in zip(plain.parameters(), theirs, strict=True):
            mine.copy_(other.view(mine.shape))  # a sequence's kernels may be images of height 1
        if channels := {"lenet": 16, "cnn": 64, "har-cnn": 64}.get(model):
            first = next(p for p in plain.parameters() if p.dim() == 2)  # PyTorch flattens channel after channel
            first.copy_(first.view(len(first), -1, channels).transpose(1, 2).reshape(first.shape))
    x = torch.randn(4, *shape)
    torch.testing.assert_close(plain.train()(formatted(x, channels_last)), ours.train()(x))


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small experiment as files: one warm-up round and two turns of one."""
    return write_task(TREE, 1, 2, tmp_path_factory.mktemp("task"))


def test_task_holds_polyfeds_rows_and_rounds(task: Path) -> None:
    """polyfed trains exactly the samples the other sides are given (it says so itself, or fails)."""
    found = Task.load(task)
    assert len(found.selected) == 3
    assert all(len(chosen) == 3 for chosen in found.selected)
    assert len(found.clients()) == len(found.sizes()) == 6
    assert [len(y) for _, y in found.clients()] == found.sizes()
    assert [found.turn(number) for number in (1, 2)] == [[chosen] for chosen in found.selected[1:]]
    assert found.samples(2) == sum(found.sizes()[k] for k in found.selected[2])
    assert in_words(found)["of"] == 6


def test_polyfed_takes_turns_and_trains_what_the_task_says(task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, said = Task.load(task), []

    def my_turn(numbers: dict[str, float]) -> bool:
        said.append(numbers)
        return len(said) < 3

    monkeypatch.setattr("benchmarks.turns.my_turn", my_turn)
    inline = replace(found, config={**TREE, "engine": {"name": "local", "workers": 0}})
    take_ours(inline)
    assert said[0]["setup"] > 0
    assert [numbers["samples"] for numbers in said[1:]] == [found.samples(1), found.samples(2)]
    said.clear()
    with pytest.raises(AssertionError, match="where the task has"):
        take_ours(replace(inline, selected=[*found.selected[:2], found.selected[0][:1]]))


def test_the_bare_loop_is_sgd(task: Path) -> None:
    """The limit's loop moves weights as torch's own optimiser does, from the common start, every time."""
    found = Task.load(task)
    loop = Loop(found, found.clients(), {0}, Layout(1, 1, False))
    torch.manual_seed(0)
    net = build(found.model, found.shape, found.classes, False)
    optimiser = torch.optim.SGD(net.parameters(), lr=found.lr)
    x, y = (torch.from_numpy(part) for part in found.clients()[0])
    for inputs, labels in zip(x.split(found.batch), y.split(found.batch), strict=True):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(net(inputs), labels).backward()
        optimiser.step()
    for _ in range(2):
        assert loop.train(0) == len(y)
        torch.testing.assert_close(loop.weights, list(net.parameters()))


def test_packing_is_longest_first() -> None:
    assert packed([0, 1, 2, 3], [5, 9, 4, 1], 2) == [[1, 3], [0, 2]]


@pytest.mark.parametrize("shape", [(3, 5), (3, 5, 4)])
def test_samples_lie_in_the_memory_format(shape: tuple[int, ...]) -> None:
    x = torch.randn(6, *shape)
    assert formatted(x, channels_last=True).movedim(1, -1).is_contiguous()
    assert formatted(x, channels_last=False).is_contiguous()
    assert torch.equal(formatted(x, channels_last=True), x)


def test_layouts_read_back() -> None:
    for layout in layouts(channels=True):
        assert Layout.parse(str(layout)) == layout
    assert {way.channels_last for way in layouts(channels=True)} == {False, True}
    assert {way.channels_last for way in layouts(channels=False)} == {False}


def test_a_cut_in_name_only_runs_the_body() -> None:
    """With the cache off, batches are drawn as for features, and the frozen part runs on every one."""
    assert f"batches-{InName('head')}" == "batches-head"
    net = config_of(TREE).model.build((1, 8, 8), 10)
    x = torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(features_from(net, x, InName("head")), net.features(x))


def test_rivals_get_our_torch() -> None:
    assert pin("torch") == f"torch=={torch.__version__.partition('+')[0]}"
    with pytest.raises(Failed, match="does not pin"):
        pin("no-such-package")


# ---- measuring


def test_a_measurement_is_a_fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last line counts, its memory is watched, and its last words are kept when it fails."""
    monkeypatch.setattr(measure, "LOOK", 0.05)
    code = "import time, json; held = bytearray(60_000_000); time.sleep(0.5); print('x'); print(json.dumps({'a': 1}))"
    found = once(Side([sys.executable, "-c", code]))
    assert found["a"] == 1
    assert found["memory"] is None or 60e6 < found["memory"] < 600e6
    with pytest.raises(Failed, match="ValueError: no"):
        once(Side([sys.executable, "-c", "raise ValueError('no')"]))
    with pytest.raises(Failed, match="no numbers but: hello"):
        once(Side([sys.executable, "-c", "print('hello')"]))


def test_last_words() -> None:
    assert last_words("a\n[rank0]: ValueError: b\nafter that\n=====\n") == "[rank0]: ValueError: b"
    assert last_words("one\ntwo\n") == "two"
    assert last_words("") == "no word"


def test_fresh_processes_to_and_fro(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neighbours stay neighbours; a side that failed is not tried again."""
    order: list[str] = []

    def fake(side: Side) -> dict[str, float]:
        order.append(side.command[0])
        if side.command[0] == "c":
            raise Failed("broken")
        return {"samples": 10, "seconds": 1 + order.count("a")}

    monkeypatch.setattr(measure, "once", fake)
    found = interleaved({name: Side([name]) for name in "abc"}, 3, silent)
    assert order == ["a", "b", "c", "b", "a", "a", "b"]
    assert found["c"] == [None]
    assert paired(found["a"], found["c"], rate) == []
    assert paired(found["a"], found["b"], rate) == pytest.approx([1.0, 2 / 3, 1.0])
    assert spread([]) is None
    assert spread([1.0, 4.0, 2.0]) == {"median": 2.0, "least": 1.0, "most": 4.0, "count": 3}


PLAYER = """
import sys, time
from benchmarks.turns import my_turn
name, kept, fails = sys.argv[1:]
said, number = {"setup": 1}, 0
while my_turn(said):
    number += 1
    if str(number) == fails:
        raise ValueError("tired")
    with open(kept, "a") as file:
        file.write(name)
    said = {"samples": number, "seconds": 0.1}
with open(kept, "a") as file:
    file.write("." + name)
"""


def test_sides_take_turns(tmp_path: Path) -> None:
    """One at a time, to and fro; a late one beside the host at the end; who fails stops; all end by themselves."""
    kept, said = tmp_path / "kept", []

    def side(name: str, fails: str = "never") -> Side:
        return Side([sys.executable, "-c", PLAYER, name, str(kept), fails])

    sides = {"limit": side("l"), "ours": side("o"), "broken": side("b", "2"), "late": side("f")}
    found = take_turns(sides, 2, said.append, late=["late"])
    assert kept.read_text()[:7] == "bollofo"
    assert sorted(kept.read_text()[7:].split(".")[1:]) == ["f", "l", "o"]
    numbers = {name: [n and n["samples"] for n in turns] for name, turns in found.items()}
    assert numbers == {"limit": [1, 2], "ours": [1, 2, 3], "broken": [1, None], "late": [None, None, 1]}
    assert found["ours"][0]["setup"] == 1
    assert "broken failed: ValueError: tired" in said
    assert take_turns({"ours": Side([sys.executable, "-c", "raise OSError('no')"])}, 1, silent) == {"ours": [None]}


def test_the_machines_load_is_a_share() -> None:
    share = others(0.05)
    assert share is None or 0 <= share <= 1


def test_difference_of_results(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([1.0, -4.0]))
    np.savez(tmp_path / "b.npz", x=np.array([1.0, -4.2]))
    assert difference(tmp_path / "a.npz", tmp_path / "a.npz") == 0
    assert difference(tmp_path / "a.npz", tmp_path / "b.npz") == pytest.approx(0.05)
    np.savez(tmp_path / "c.npz", y=np.array([1.0]))
    with pytest.raises(Failed, match="other names"):
        difference(tmp_path / "a.npz", tmp_path / "c.npz")


# ---- both sides of a cell really do the same work; how fast they are is the benchmarks' business


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the time of other processes is read from /proc")
def test_polyfed_and_the_limit_train_on_the_same_samples_in_turns(tmp_path: Path) -> None:
    tree = {**TREE, "data": "digits", "model": "cnn", "train": {"lr": 0.05, "batch": 32}, "participation": 1.0}
    path = write_task(tree, 3, 3, tmp_path)
    layout = str(Layout(layouts(channels=True)[0].processes, 1, channels_last=True))
    sides = {"limit": Side.python("limit", str(path), "--layout", layout), "ours": Side.python("ours", str(path))}
    found = take_turns(sides, 3, silent)
    assert len(found["ours"]) == len(found["limit"]) == 3
    assert [turn["samples"] for turn in found["ours"]] == [turn["samples"] for turn in found["limit"]]
    ratios = paired(found["ours"], found["limit"], lambda numbers: numbers["samples"] / numbers["cpu"])
    assert len(ratios) == 3
    assert min(ratios) > 0


@pytest.mark.slow
def test_the_frozen_cache_changes_nothing_that_is_learnt(tmp_path: Path) -> None:
    method = {"name": "fedrep", "head_epochs": 5}
    tree = {**TREE, "method": method, "data": "digits", "model": "cnn", "train": {"lr": 0.05, "batch": 32}}
    work = json.dumps({"tree": tree, "job": "train", "clients": 4})
    for name, flags in (("cached", []), ("uncached", ["--uncached"])):
        once(Side.python("frozen", work, "--save", str(tmp_path / f"{name}.npz"), *flags))
    assert difference(tmp_path / "cached.npz", tmp_path / "uncached.npz") <= TOLERANCE
