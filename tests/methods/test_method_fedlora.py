"""FedLoRA: personal adapters serve clients that differ, and only the shared slice is sent; text and tables besides."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from riding import leaks, learnt

import polyfed
from polyfed.data.sources.arrays import Arrays
from polyfed.errors import Interrupted, UsageError
from polyfed.params import head, lora
from polyfed.use.export import read

KEYS: dict[str, Any] = {
    "model.name": "text-transformer",
    "model.ids": 20,
    "model.width": 0.25,
    "train.lr": 0.1,
    "train.batch": 10,
    "engine.workers": 0,
}
ADAPTED = {**KEYS, "model.lora.rank": 4, "method.name": "fedlora"}


def opposites(clients: int = 8, n: int = 60) -> Arrays:
    """Texts whose low tokens mean one class to every other client, and the other class to the rest."""
    draw = np.random.default_rng(0)
    x = draw.integers(1, 20, (clients, n, 8))
    x[:, :, 6:] = 0
    y = ((x[:, :, :6] < 10).sum(2) > 3) ^ (np.arange(clients) % 2 == 1)[:, None]
    users = np.repeat([f"c{k}" for k in range(clients)], n)
    return Arrays.hold(x.reshape(-1, 8), y.reshape(-1).astype(int), users=users, tokens=True)


def run(out: Path, *keys: dict[str, Any], **more: Any) -> polyfed.Result:
    return polyfed.run(ADAPTED, *keys, data=opposites(), out=out, **more)


LONG = {"rounds": 8, "train.epochs": 2, "eval.every": 8}


def test_personal_adapters_beat_shared_ones_on_clients_that_differ(tmp_path: Path) -> None:
    own = run(tmp_path / "own", LONG, {"method.body": "frozen"})
    shared = run(tmp_path / "shared", LONG, {"method.adapters": "shared", "method.body": "frozen"})
    assert own["personal.accuracy"] == pytest.approx(0.83, abs=0.06)  # as measured when this was written
    assert shared["personal.accuracy"] == pytest.approx(0.5, abs=0.06)  # one model cannot say both
    d, classes = 16, 2
    assert own["bytes"]["up"] == 4 * (d * classes + classes) * 8 * 8  # the head alone, of 8 clients in 8 rounds
    assert shared["bytes"]["up"] > own["bytes"]["up"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_they_do_so_under_other_seeds_too(seed: int, tmp_path: Path) -> None:
    found = {
        who: run(tmp_path / who, LONG, {"method.adapters": who, "method.body": "frozen"}, seed=seed)[
            "personal.accuracy"
        ]
        for who in ("personal", "shared")
    }
    assert found["personal"] > found["shared"] + 0.2


@pytest.mark.parametrize("frozen", ["trained", "frozen"])
def test_only_the_shared_slice_goes_up(ride: Any, frozen: str) -> None:
    keys = {"model.lora.rank": 2, "method.adapters": "personal", "method.body": frozen}
    seen = ride("fedlora", data="skewed", rounds=2, **keys)
    layout, initial = seen.layout, seen.initial
    shared = seen.world.method.shared
    sent = [entry.name for entry in layout.floats if shared.test(entry)]
    assert not any("lora" in name for name in sent)
    assert sent == (["head.weight"] if frozen == "frozen" else [e.name for e in layout.floats if not lora.test(e)])
    for k in range(4):
        work = seen.train(2, k)
        assert set(work.up) == {"w"}
        assert work.up.nbytes == 4 * layout.length(shared)
        live = initial.copy()
        live.flat.copy_(work.live)
        kept = work.memory()["personal"]
        assert torch.equal(kept, live.get(lora)[0])
        assert not leaks(learnt(kept, initial.get(lora)[0]), work.up)
        if frozen == "frozen":
            assert torch.equal(live.get(~(lora | head))[0], initial.get(~(lora | head))[0])
            assert not torch.equal(live.get(lora)[0], initial.get(lora)[0])


def test_a_model_without_adapters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"set model.lora.rank=4"):
        run(tmp_path / "run", {"model.lora.rank": 0})


def test_an_export_has_plain_layers_and_answers_alike(tmp_path: Path) -> None:
    result = run(tmp_path / "run", rounds=1)
    x = opposites().load().x[:50]
    out = result.export("safetensors", 3, tmp_path / "export")
    back = read(out)
    assert not any("lora" in name for name in back.state_dict())
    assert any("lora_b" in name for name in result.client(3).state_dict())
    torch.testing.assert_close(back.logits(x), result.client(3).logits(x), rtol=1e-5, atol=1e-5)


# ---- other methods on text and on tables


def rows() -> Arrays:
    """Rows of two categories and two numbers, of four clients."""
    draw = np.random.default_rng(1)
    x = np.concatenate([draw.integers(0, 4, (160, 2)), draw.normal(size=(160, 2))], axis=1).astype(np.float32)
    return Arrays.hold(x, (x[:, 0] > 1).astype(int), users=np.repeat(["a", "b", "c", "d"], 40))


WORLDS: dict[str, Any] = {
    "text-bag": (opposites, {**KEYS, "model.name": "text-bag"}),
    "text-transformer": (opposites, KEYS),
    "table-mlp": (rows, {"model.name": "table-mlp", "model.categories": [3, 3], "engine.workers": 0}),
}
SMALL: dict[str, Any] = {
    "mupfl": {"method.m": 5, "method.match_steps": 2, "method.draws": 1, "method.tau": 1},
    "distfl": {"method.steps": 3, "method.z": 5, "method.warmup_rounds": 1},
    "ecl": {},
}
REFUSED = {("distfl", model): "an id has none" for model in WORLDS}


@pytest.mark.parametrize("name", ["fedper", "ditto", "map", "ecl", "mupfl", "distfl"])
@pytest.mark.parametrize("model", WORLDS)
def test_a_method_runs_on_text_and_tables_or_refuses(model: str, name: str, tmp_path: Path) -> None:
    data, keys = WORLDS[model]
    small = {"method.name": name, "rounds": 1, "eval.classes": False, **SMALL.get(name, {})}
    if (name, model) in REFUSED:
        with pytest.raises(UsageError, match=REFUSED[name, model]):
            polyfed.run(keys, small, data=data(), out=tmp_path / "run")
        return
    result = polyfed.run(keys, small, data=data(), out=tmp_path / "run")
    assert result["failed"] == result["rejected"] == {}
    assert 0 <= result["personal.accuracy"] <= 1


@pytest.mark.extras
@pytest.mark.parametrize("model", WORLDS)
def test_private_steps_bound_every_row(model: str, tmp_path: Path) -> None:
    pytest.importorskip("opacus", reason="skipped: opacus, which does the accounting, is not installed")
    data, keys = WORLDS[model]
    privacy = {"privacy.name": "dp-sgd", "privacy.noise": 1.0, "rounds": 1, "model.lora.rank": 2}
    result = polyfed.run(keys, privacy, data=data(), out=tmp_path / "run")
    assert result["failed"] == result["rejected"] == {}
    assert result["privacy"] is not None


class StopAfterEachRound:
    """Stops the run as soon as a round is committed."""

    def round(self, done: int, rounds: int, numbers: dict[str, Any]) -> None:
        if done < rounds:
            raise Interrupted("enough for this sitting")

    def say(self, text: str) -> None:
        """Not shown."""


def written(folder: Path) -> dict[str, Any]:
    """The same texts as a file, which other processes can read."""
    data = opposites(4, 30).load()
    rows = zip(data.x.tolist(), data.y.tolist(), data.users.tolist(), strict=True)
    lines = [f"{' '.join(f'w{t}' for t in x if t)},{y},c{user}" for x, y, user in rows]
    (folder / "texts.csv").write_text("\n".join(["text,label,client", *lines]) + "\n")
    return {"data.name": "text", "data.file": str(folder / "texts.csv"), "data.length": 8, "data.ids": 64}


@pytest.mark.slow
@pytest.mark.parametrize("model", ["text-transformer", "text-bag"])
def test_workers_and_a_stop_change_no_bit(model: str, tmp_path: Path) -> None:
    keys = {**ADAPTED, **written(tmp_path), "model.ids": None, "model.name": model, "rounds": 2}
    bits = polyfed.run(keys, out=tmp_path / "serial").fingerprint
    assert polyfed.run(keys, {"engine.workers": 2}, out=tmp_path / "workers").fingerprint == bits
    with pytest.raises(Interrupted):
        polyfed.run(keys, out=tmp_path / "stopped", progress=StopAfterEachRound())
    assert polyfed.resume(tmp_path / "stopped").fingerprint == bits
