"""The Python API: the caller's own objects go in, numbers, records and models come out, and nothing else changes."""

import html
import json
import random
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import polyfed
from polyfed.api import Result, config_of
from polyfed.data.sources import arrays, base
from polyfed.data.sources.digits import Digits
from polyfed.engine.local import Local
from polyfed.engine.rounds import Run
from polyfed.errors import DataError, UsageError
from polyfed.methods.base import Method, OnTop
from polyfed.methods.fedavg import FedAvg
from polyfed.methods.fedprox import FedProx
from polyfed.registry import param
from polyfed.use.predictor import Predictor

Keys = dict[str, Any]
LEARNS: Keys = {"rounds": 2, "train.lr": 0.5, "split.heldout": 1}


class Small(nn.Module):
    """A user's model, for any shape."""

    def __init__(self, shape: tuple[int, ...], classes: int):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), 8), nn.ReLU())
        self.out = nn.Linear(8, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.body(x))


class Louder(FedAvg):
    """A user's method, inheriting another's name."""

    strength: float = param(2.0, "how loud", gt=0)

    def loss(self, client: Any, batch: Any) -> torch.Tensor:
        return self.strength * super().loss(client, batch)


@pytest.fixture(scope="module")
def own(tiny: Keys) -> Keys:
    """The keys of a tiny run with a model of the user's."""
    return {key: value for key, value in tiny.items() if not key.startswith(("model.", "data."))}


@pytest.fixture(scope="module")
def vectors() -> tuple[np.ndarray, np.ndarray]:
    """Three well separated classes of 25 points each."""
    draw = np.random.default_rng(5)
    y = np.repeat([0, 1, 2], 25)
    return (draw.normal(size=(75, 5)) + 3 * np.eye(3, 5)[y]).astype(np.float32), y


@pytest.fixture(scope="module")
def made(tiny: Keys, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Result]:
    """The run of a method on digits; each is made once."""
    kept: dict[str, Result] = {}

    def run(method: str) -> Result:
        if method not in kept:
            kept[method] = polyfed.run(tiny, LEARNS, method=method, out=tmp_path_factory.mktemp("made") / method)
        return kept[method]

    return run


class TestWhatGoesIn:
    @pytest.mark.parametrize("model", ["class", "instance", "factory"])
    def test_own_module(self, model: str, own: Keys, vectors: Any) -> None:
        torch.manual_seed(0)  # an instance starts from its own weights
        given: Any = {"class": Small, "instance": Small((5,), 3), "factory": lambda: Small((5,), 3)}[model]
        result = polyfed.run(own, data=vectors, model=given, **{"train.lr": 0.5, "rounds": 3})
        assert result["global.accuracy"] > 0.8
        assert result.client(0).predict(vectors[0]).shape == (75,)

    def test_instance_starts_from_its_own_weights(self, own: Keys, vectors: Any) -> None:
        torch.manual_seed(1)
        one, other = Small((5,), 3), Small((5,), 3)
        prints = {polyfed.run(own, data=vectors, model=model).fingerprint for model in (one, one, other)}
        assert len(prints) == 2

    def test_images(self, own: Keys) -> None:
        """uint8 images, of one channel or of three, are normalised and resized like those of a named data set."""
        draw, y = np.random.default_rng(0), np.arange(60) % 3
        x = (draw.integers(0, 60, size=(60, 8, 8)) + 80 * y[:, None, None]).astype(np.uint8)
        result = polyfed.run(own, data=(x, y), model="mlp", **{"train.lr": 0.2, "train.epochs": 5})
        assert result["global.accuracy"] > 0.5
        assert (result.global_model().predict(x) == y).mean() > 0.5
        coloured = polyfed.run(own, data=(np.stack([x] * 3, axis=3), y), model="lenet", **{"model.width": 0.1})
        assert coloured["notes"] == {"resized": coloured["notes"]["resized"]}
        assert coloured.client(0).probabilities(np.stack([x[:2]] * 3, axis=3)).sum(1) == pytest.approx(1)

    def test_torch_data_set_is_its_arrays(self, own: Keys, vectors: Any) -> None:
        x, y = vectors
        as_set = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
        one, other = (polyfed.run(own, data=data, model=Small) for data in (as_set, (x, y)))
        assert one.fingerprint == other.fingerprint

    def test_tensors_are_arrays(self, own: Keys, vectors: Any) -> None:
        x, y = torch.from_numpy(vectors[0]).requires_grad_(), torch.from_numpy(vectors[1])
        assert config_of(own, data=(x, y)).data.key == config_of(own, data=vectors).data.key

    @pytest.mark.parametrize("rows", [[{"x": 1}], [([1.0], 0.5)], [([1.0], None)]], ids=str)
    def test_strange_torch_data_set(self, rows: list[Any], own: Keys) -> None:
        class Strange(torch.utils.data.Dataset):
            def __len__(self) -> int:
                return len(rows)

            def __getitem__(self, at: int) -> Any:
                return rows[at]

        with pytest.raises(UsageError, match="a torch data set must have a length and give pairs"):
            polyfed.run(own, data=Strange())

    def test_init_from_a_result(self, tiny: Keys, made: Any) -> None:
        """A run starts where another ended; it takes steps of next to nothing, so it ends there too."""
        first = made("fedavg")
        again = polyfed.run(tiny, init=first.path, **{"train.lr": 1e-12, "seed": 0, "split.heldout": 1})
        assert again["global.accuracy"] == first["global.accuracy"]

    def test_test_arrays_are_the_global_test(self, own: Keys, vectors: Any) -> None:
        x, y = vectors
        result = polyfed.run(own, data=(x[::2], y[::2], x[1::2], y[1::2]), model=Small)
        assert result.counts()["global"].sum() == len(y[1::2])

    @pytest.mark.parametrize("limit_first", [True, False])
    def test_other_keys_come_beside_an_object(self, limit_first: bool, own: Keys, vectors: Any) -> None:
        pairs = [("data.limit", 10), ("data", vectors)]
        keys = dict(pairs if limit_first else reversed(pairs))
        config = config_of(own, {**keys, "model": Small, "model.head": "out"})
        assert config.data.limit == 10
        assert config.data.name == "arrays"
        assert config.model.head == "out"
        assert polyfed.federation(own, {**keys, "model": Small}).describe()["total"] == 30

    @pytest.mark.parametrize("data", [5, (1,), [1, 2, 3], object()])
    def test_what_is_no_data(self, data: Any, own: Keys) -> None:
        with pytest.raises(UsageError, match="data must be a name, arrays"):
            polyfed.run(own, data=data)

    def test_what_is_no_model(self, own: Keys) -> None:
        with pytest.raises(UsageError, match="a model must be a name"):
            polyfed.run(own, model=5)

    def test_specs(self, tiny: Keys, made: Any) -> None:
        """A described thing goes in like its name and keys."""
        keys = {key: value for key, value in tiny.items() if not key.startswith(("data.", "engine."))}
        result = polyfed.run(keys, LEARNS, data=Digits(limit=20), engine=Local(workers=0), method=FedProx(mu=0.5))
        assert result["method"] == "fedprox"
        assert result.config["method"]["mu"] == 0.5
        assert polyfed.run(tiny, LEARNS, method="fedprox", **{"method.mu": 0.5}).fingerprint == result.fingerprint


class TestOwnMethod:
    @pytest.mark.parametrize("workers", [0, 1])
    def test_class_and_instance(self, workers: int, tiny: Keys, made: Any) -> None:
        """Not taken for the method whose name it inherits, also in another process."""
        keys = {**tiny, **LEARNS, "engine.workers": workers}
        loud = polyfed.run(keys, method=Louder)
        assert loud["method"] == f"{__name__}:Louder"
        assert loud["failed"] == {}
        assert loud.fingerprint != made("fedavg").fingerprint
        assert polyfed.run(keys, method=Louder(strength=1)).fingerprint == made("fedavg").fingerprint
        assert polyfed.run(keys, {"method": Louder, "method.strength": 1}).fingerprint == made("fedavg").fingerprint

    def test_of_a_function(self, tiny: Keys) -> None:
        class Hidden(Method):
            """Nobody can import this."""

        assert polyfed.run(tiny, method=Hidden, **{"engine.workers": 1})["failed"] == {}

    def test_parameter_that_must_be_given(self, tiny: Keys) -> None:
        class Above(OnTop):
            """Has no base of its own."""

        with pytest.raises(UsageError, match=r"'method\.base' must be given"):
            polyfed.run(tiny, method=Above)
        config = config_of(tiny, {"method": Above, "method.base": "fedprox"})
        assert config.method.base.name == "fedprox"

    def test_compared(self, tiny: Keys) -> None:
        made = polyfed.compare(tiny, methods=["fedavg", Louder], seeds=[3], Louder={"strength": 1.5})
        assert [s["method"] for s in made.summaries] == ["fedavg", f"{__name__}:Louder"]
        assert made.results[1].config["method"]["strength"] == 1.5


class TestPredictions:
    @pytest.mark.parametrize("method", ["fedavg", "fedper", "fedavg-ft", "local"])
    def test_client_answers_as_it_was_measured(self, method: str, made: Any) -> None:
        """The model of every client, from raw test rows: the recorded confusion counts, cell by cell."""
        result = made(method)
        federation = polyfed.federation(result.path / "config.yaml")
        counts = result.counts()
        kept = dict(zip(counts["final_personal_clients"], counts["final_personal"], strict=True))
        kept |= dict(zip(counts["heldout_clients"], counts["heldout"], strict=True))
        assert sorted(kept) == [0, 1, 2, 3]
        records = result.clients[result.clients["measure"].isin(["personal_final", "heldout"])].set_index("client")
        for client, expected in kept.items():
            rows = federation.split.test[client]
            truth, said = federation.dataset.y[rows], result.client(int(client)).predict(federation.dataset.x[rows])
            table = np.zeros((10, 10), int)
            np.add.at(table, (truth, said), 1)
            assert (table == expected).all()
            assert records.loc[client, "accuracy"] == pytest.approx((truth == said).mean())

    def test_global_model(self, made: Any) -> None:
        result = made("fedavg")
        federation = polyfed.federation(result.path / "config.yaml")
        rows = federation.split.global_test
        right = result.global_model().predict(federation.dataset.x[rows]) == federation.dataset.y[rows]
        assert right.mean() == pytest.approx(result["global.accuracy"])

    def test_personal_models_differ(self, made: Any) -> None:
        x = np.arange(64, dtype=np.uint8).reshape(1, 8, 8)
        logits = {tuple(made("fedper").client(k).logits(x)[0].tolist()) for k in range(4)}
        assert len(logits) == 4
        assert len({tuple(made("fedavg").client(k).logits(x)[0].tolist()) for k in range(4)}) == 1

    def test_wrong_questions(self, made: Any) -> None:
        with pytest.raises(UsageError, match="there is no client 4; the run has clients 0 to 3"):
            made("fedavg").client(4)
        with pytest.raises(UsageError, match="method 'fedper' has no global model; ask for a client's"):
            made("fedper").global_model()
        with pytest.raises(UsageError, match="do not fit"):
            made("fedavg").client(0).predict(np.zeros((3, 7), np.uint8))

    def test_asking_changes_nothing(self, made: Any) -> None:
        result = made("fedper")
        before = {file: file.stat().st_mtime_ns for file in result.path.rglob("*")}
        result.client(1)
        assert {file: file.stat().st_mtime_ns for file in result.path.rglob("*")} == before


class TestResult:
    def test_numbers_by_place(self, made: Any) -> None:
        result = made("fedavg")
        assert result["personal.accuracy"] == result.summary["personal"]["accuracy"]
        assert result["fingerprint"] == result.fingerprint
        assert "FedAvg" in result.table()
        assert repr(result) == f"<run {result.path}>"

    def test_records_are_frames(self, made: Any) -> None:
        result = made("fedavg")
        assert isinstance(result.rounds, pandas.DataFrame)
        assert set(result.clients[result.clients["measure"] == "personal"]["round"]) == {1, 2}
        assert set(result.records("training")["round"]) == {1, 2}
        with pytest.raises(DataError, match=r"has no nonsense\.csv"):
            result.records("nonsense")

    def test_round_of_arrival(self, made: Any) -> None:
        result = made("fedavg")
        curve = result.rounds[result.rounds["measure"] == "global"].set_index("round")["accuracy"]
        assert curve[1] < curve[2]
        assert result.round_of_arrival(curve[1]) == 1
        assert result.round_of_arrival((curve[1] + curve[2]) / 2) == 2
        assert result.round_of_arrival(1.01) is None
        assert result.round_of_arrival(0.0, "personal") == 1
        with pytest.raises(UsageError, match="the run has no measure 'persnal'; did you mean 'personal'"):
            result.round_of_arrival(0.5, "persnal")
        with pytest.raises(UsageError, match="the run has no measure 'global'"):
            made("fedper").round_of_arrival(0.5)

    def test_resume_of_a_finished_run_does_no_work(self, made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        def never(self: Run) -> None:
            raise AssertionError("worked")

        monkeypatch.setattr(Run, "go", never)
        again = polyfed.resume(made("fedavg").path)
        assert again.summary == made("fedavg").summary


class TestUnfinished:
    @pytest.fixture
    def stopped(self, tiny: Keys, tmp_path: Path) -> Path:
        """A run that failed after its first round."""

        class Watch:
            def round(self, done: int, rounds: int, numbers: Keys) -> None:
                raise KeyboardInterrupt

            def say(self, text: str) -> None: ...

        with pytest.raises(KeyboardInterrupt):
            polyfed.run(tiny, LEARNS, method="fedper", progress=Watch(), out=tmp_path / "r")
        return tmp_path / "r"

    def test_load(self, stopped: Path) -> None:
        result = polyfed.load(stopped)
        assert not result.finished
        assert (result.round, result.config["rounds"]) == (1, 2)
        assert repr(result) == f"<run {stopped}, not finished>"
        with pytest.raises(DataError, match="is not finished; go on with: polyfed resume"):
            _ = result.summary
        assert result.client(0).predict(np.zeros((2, 8, 8), np.uint8)).shape == (2,)
        assert set(result.rounds["round"]) == {1}

    def test_resume(self, stopped: Path, made: Any) -> None:
        assert polyfed.resume(stopped).fingerprint == made("fedper").fingerprint

    def test_load_of_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="there is no run at"):
            polyfed.load(tmp_path / "nothing")

    def test_objects_are_passed_again(
        self, own: Keys, vectors: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole = polyfed.run(own, data=vectors, model=Small, out=tmp_path / "r")
        (tmp_path / "r" / "summary.json").unlink()
        monkeypatch.setattr(arrays, "_held", {})  # as in another process
        monkeypatch.setattr(base, "_loaded", type(base._loaded)())
        with pytest.raises(DataError, match="were given as Python objects; pass them again"):
            polyfed.resume(tmp_path / "r")
        again = polyfed.resume(tmp_path / "r", data=vectors, model=Small)
        assert again.fingerprint == whole.fingerprint


class TestTheCaller:
    @pytest.mark.parametrize("workers", [0, 1])
    def test_threads_and_random_state_are_as_before(self, workers: int, tiny: Keys) -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(threads + 1)
        try:
            random.seed(4), np.random.seed(5), torch.manual_seed(6)
            before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
            result = polyfed.run(tiny, method="fedper", **{"engine.workers": workers})
            result.client(0)
            after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
            assert torch.get_num_threads() == threads + 1
            assert after == before
        finally:
            torch.set_num_threads(threads)

    def test_random_state_does_not_reach_the_run(self, tiny: Keys, made: Any) -> None:
        torch.manual_seed(77), np.random.seed(77), random.seed(77)
        assert polyfed.run(tiny, LEARNS).fingerprint == made("fedavg").fingerprint

    def test_keys_given_are_not_changed(self, tiny: Keys) -> None:
        keys = {**tiny, "method": "fedprox", "train": {"lr": 0.1}}
        copy = {**keys, "train": dict(keys["train"])}
        polyfed.run(keys, seed=1)
        assert keys == copy

    def test_later_sources_come_over_earlier_ones(self, tmp_path: Path) -> None:
        (tmp_path / "c.yaml").write_text("seed: 1\nrounds: 3\ntrain.lr: 0.1\n")
        config = config_of(tmp_path / "c.yaml", {"rounds": 4, "train": {"batch": 8}}, seed=2)
        assert (config.seed, config.rounds, config.train.lr, config.train.batch) == (2, 4, 0.1, 8)

    def test_watch_is_told(self, tiny: Keys) -> None:
        told: list[tuple[int, int]] = []

        class Watch:
            def round(self, done: int, rounds: int, numbers: Keys) -> None:
                assert 0 <= numbers["global"]["accuracy"] <= 1
                told.append((done, rounds))

            def say(self, text: str) -> None: ...

        polyfed.run(tiny, LEARNS, progress=Watch())
        assert told == [(1, 2), (2, 2)]

    def test_package_offers_no_more_than_it_says(self) -> None:
        with pytest.raises(AttributeError, match="module 'polyfed' has no attribute 'nonsense'"):
            _ = polyfed.nonsense
        assert all(hasattr(polyfed, name) for name in polyfed.__all__)

    def test_methods_is_the_room(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whether or not somebody imported it before, which binds the name."""
        monkeypatch.delattr(polyfed, "methods")
        assert polyfed.methods is sys.modules["polyfed.methods"]
        assert polyfed.methods.Method is Method


SCRIPT = """
    import numpy as np
    from torch import nn

    import polyfed

    class Net(nn.Module):
        def __init__(self, classes):
            super().__init__()
            self.body, self.head = nn.Linear(4, 6), nn.Linear(6, classes)

        def forward(self, x):
            return self.head(self.body(x).relu())

    draw = np.random.default_rng(0)
    y = np.arange(90) % 3
    x = (draw.normal(size=(90, 4)) + 2 * np.eye(3, 4)[y]).astype("float32")
    keys = {"split.clients": 4, "rounds": 2, "train.lr": 0.3, "engine.workers": WORKERS}
    result = polyfed.run(keys, data=(x, y), model=Net, method="fedper")
    print(result.fingerprint, result.client(3).predict(x[:5]).shape, result["failed"])
"""


@pytest.mark.slow
def test_script_without_a_main_guard(tmp_path: Path) -> None:
    """A plain script with its own model class and two workers; and the same bits without workers."""
    said = []
    for workers in (2, 0):
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(SCRIPT).replace("WORKERS", str(workers)))
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path, timeout=120)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        said.append(done.stdout)
    assert said[0] == said[1]
    assert said[0].endswith("(5,) {}\n")


# ---- clients by name, and what a notebook shows


@pytest.fixture(scope="module")
def named(tiny: Keys, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A run of three sites, one with a name that no file should have."""
    base = tmp_path_factory.mktemp("named")
    numbers = np.random.default_rng(0)
    for site in ("north", "süd", "$1|2"):
        (base / "sites" / site).mkdir(parents=True)
        x, y = numbers.normal(size=(30, 4)).astype(np.float32), np.arange(30) % 3
        np.savez(base / "sites" / site / "all.npz", x=x, y=y)
    keys = {key: value for key, value in tiny.items() if not key.startswith(("data.", "split."))}
    return polyfed.run(keys, {"data": "folder", "data.root": str(base / "sites")}, out=base / "run")


def test_a_client_goes_by_its_name(named: Result) -> None:
    names = named.folder.names()
    assert sorted(names.values()) == ["$1|2", "north", "süd"]
    x = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    for id, name in names.items():
        for who in (name, id, str(id)):
            assert torch.equal(named.client(who).logits(x), named.client(id).logits(x))


@pytest.mark.parametrize(
    ("who", "sentence"),
    [
        ("norht", "has no client 'norht'; the nearest name is 'north'"),
        ("NORTH", "has no client 'NORTH'; the nearest name is 'north'"),
        ("sud", "has no client 'sud'; the nearest name is 'süd'"),
        ("", "has no client ''; the nearest name is"),
        (7, "there is no client 7; the run has clients 0 to 2"),
        ("-1", "there is no client -1; the run has clients 0 to 2"),
        ("9" * 5000, "has no client '999"),
    ],
)
def test_an_unknown_client(who: int | str, sentence: str, named: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyfed.api.result.replay", lambda *_: pytest.fail("the data were read"))
    for ask in (named.client, lambda one: named.export("safetensors", one)):
        with pytest.raises(UsageError, match=r"has .*client") as said:
            ask(who)
        assert sentence in str(said.value)


def test_exports_are_named_after_their_client(named: Result, cli: Callable[..., Any], tmp_path: Path) -> None:
    ids = {name: id for id, name in named.folder.names().items()}
    assert named.export("safetensors", "north").name == "client-north-safetensors"
    assert named.export("safetensors", ids["süd"]).name == "client-süd-safetensors"
    strange = named.export("safetensors", "$1|2")
    assert strange.name == f"client-{ids['$1|2']}-safetensors"
    assert (strange / "card.md").read_text().startswith(f"# The model of client {ids['$1|2']}, \\$1\\|2\n")
    np.save(tmp_path / "x.npy", np.zeros((2, 4), np.float32))
    said = cli("predict", str(named.path), "--client", "north", "--input", str(tmp_path / "x.npy"))
    assert (said.code, said.out.splitlines()[0]) == (0, "row,class,name,probability")
    said = cli("predict", str(named.path), "--client", "nort", "--input", str(tmp_path / "x.npy"))
    assert said.code == 2
    assert said.err.endswith("has no client 'nort'; the nearest name is 'north'\n")


def test_a_name_that_is_a_number_comes_before_an_id(tmp_path: Path) -> None:
    from polyfed.engine.run_folder import RunFolder

    rows = [{"id": id, "name": name, "train": 1} for id, name in enumerate(("2", "0", "client-2"))]
    (tmp_path / "federation.json").write_text(json.dumps({"class_names": [], "heldout": [], "clients": rows}))
    folder = RunFolder(tmp_path)
    assert [folder.client(who) for who in ("2", "0", "1", 2, "client-2")] == [0, 1, 1, 2, 2]
    assert [folder.called(id) for id in (0, 1, 2)] == ["0", "1", "2"]  # a number in a file's name is an id
    assert [folder.named(id) for id in (0, 1, 2)] == ["2", "0", ""]


def test_a_misspelt_number(named: Result) -> None:
    for key in ("personal.acuracy", "personal.accuracy.mean", "personl", "bytes.sideways", ""):
        with pytest.raises(UsageError) as said:
            named[key]
        assert str(said.value).startswith(f"the run has no '{key}'; ")
        assert "personal.accuracy" in str(said.value)
        assert "bytes.up" in str(said.value)
    with pytest.raises(UsageError, match=r"did you mean 'personal\.accuracy'\? It has run, method, seed,"):
        named["personal.acuracy"]
    assert named["personal.accuracy"] == named.summary["personal"]["accuracy"]


def test_a_predictor_has_the_state_of_its_network(named: Result) -> None:
    predictor = named.client("north")
    kept = predictor.state_dict()
    assert kept.keys() == predictor.model.state_dict().keys()
    assert all(torch.equal(value, predictor.model.state_dict()[name]) for name, value in kept.items())
    x = torch.zeros(1, 4).numpy()
    before = predictor.logits(x)
    for value in kept.values():  # a copy: whoever changes it changes nothing here
        value.zero_()
    assert torch.equal(predictor.logits(x), before)
    graph = Predictor(lambda rows: rows, predictor.preparation, predictor.class_names)
    with pytest.raises(UsageError, match="an exported graph has no state_dict"):
        graph.state_dict()


def test_all_clients_of_a_comparison_are_one_table(tiny: Keys, tmp_path: Path) -> None:
    made = polyfed.compare(
        tiny, methods=["fedavg", "local"], seeds=2, **{"split.alpha": [0.2, 2.0]}, out=tmp_path / "c"
    )
    table = made.clients
    assert list(table.columns[:6]) == ["method", "seed", "split.alpha", "round", "measure", "client"]
    final = table[table["measure"] == "personal_final"]
    assert len(final) == 2 * 2 * 2 * 4
    assert set(final["name"]) == {"client-0", "client-1", "client-2", "client-3"}
    means = final.groupby(["method", "split.alpha", "seed"])["accuracy"].mean()
    for cell, summary in made.folder.results().items():
        expected = summary["personal"]["accuracy"]
        assert means[cell.row, cell.setting["split.alpha"], cell.seed] == pytest.approx(expected)


def test_a_notebook_shows_tables(tiny: Keys, tmp_path: Path) -> None:
    made = polyfed.compare(tiny, methods=["fedavg", "fedper"], seeds=1, tag="<b>", out=tmp_path / "<i>c")
    shown = made._repr_html_()
    assert shown.startswith("<p><code>&lt;comparison ")
    assert "&lt;i&gt;c" in shown
    assert shown.count("<tr>") == 3
    assert "<script" not in shown
    assert "<table>" in made.results[0]._repr_html_()
    begun = polyfed.load(made.path / "fedavg-s0")
    (begun.path / "summary.json").unlink()
    assert begun._repr_html_() == f"<p><code>{html.escape(repr(begun))}</code></p>"
    shutil.rmtree(made.path / "fedper-s0")
    assert "<table>" not in made._repr_html_()
    with pytest.raises(DataError, match=r"no run of the comparison at .* is finished"):
        _ = made.clients
