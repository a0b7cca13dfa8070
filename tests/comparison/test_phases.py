"""Rounds that several cells have in common are made once: the same numbers, records and bits as made by each."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import polyfed
from polyfed.comparison.grid import make_grid
from polyfed.comparison.phases import sources, takes_rounds
from polyfed.engine.start import ROUNDS, may_name
from polyfed.methods import names
from polyfed.methods.base import Client, Message, Method, OnTop, methods
from polyfed.methods.fedavg import FedAvg
from polyfed.registry import param

Keys = dict[str, Any]
SPENT = ("seconds", "phase_one", "run")  # of a summary: what a shared run may have differently
ON_TOP = [name for name in names() if issubclass(methods.get(name), OnTop)]


class Meddling(OnTop):
    """On top of FedAvg, but with rounds of its own."""

    base: Method = param(FedAvg(), "below")

    def upload(self, client: Client) -> Message:
        up = super().upload(client)
        up["w"] = 0.5 * up["w"]
        return up


class Eager(OnTop):
    """Its predictor is never the base's."""

    base: Method = param(FedAvg(), "below")

    def predictor(self, client: Client) -> nn.Module:
        return client.frozen(client.live).model


def pairs(tree: Keys) -> dict[str, str]:
    return {cell.name: base.name for cell, base in sources(make_grid({"seeds": 1, **tree}).cells).items()}


class TestWhoTakesWhose:
    def test_every_cell_that_is_the_base(self) -> None:
        tree = {"methods": ["ecl", "fedavg-ft", "fedavg", "fedper"], "split.alpha": [0.1, 1.0]}
        assert pairs(tree) == {
            f"{name}-split.alpha={alpha}-s0": f"fedavg-split.alpha={alpha}-s0"
            for alpha in (0.1, 1.0)
            for name in ("ecl", "fedavg-ft")
        }

    def test_a_base_with_other_parameters_is_another(self) -> None:
        tree = {"methods": ["fedprox", "ecl"], "ecl": {"base": {"name": "fedprox", "mu": 0.2}}}
        assert pairs(tree) == {}
        assert pairs({**tree, "fedprox": {"mu": 0.2}}) == {"ecl-s0": "fedprox-s0"}

    def test_on_top_of_what_is_on_top(self) -> None:
        tree = {"methods": ["ecl", "fedavg-ft", "fedavg"], "ecl": {"base": "fedavg-ft"}}
        assert pairs(tree) == {"ecl-s0": "fedavg-ft-s0", "fedavg-ft-s0": "fedavg-s0"}

    def test_without_a_cell_of_the_base_the_first_on_top_of_it_lends_its_rounds(self) -> None:
        tree = {"methods": ["ecl", "fedavg-ft", "lws", "tau-norm"], "ecl": {"lam": [0.3, 0.7]}}
        expected = dict.fromkeys(("ecl-lam=0.7-s0", "fedavg-ft-s0", "lws-s0", "tau-norm-s0"), "ecl-lam=0.3-s0")
        assert pairs(tree) == expected
        assert pairs({**tree, "tau-norm": {"base": "fedprox"}}).keys() == expected.keys() - {"tau-norm-s0"}

    def test_code_that_a_cell_does_not_name_is_not_run_for_its_rounds(self) -> None:
        ecl = polyfed.api.config_of(method="ecl")
        assert may_name({"name": "lws", "base": {"name": "fedavg"}}, ecl)
        assert not may_name({"name": "mine.py:Mine", "base": {"name": "fedavg"}}, ecl)
        assert not may_name({"name": "lws", "base": {"name": "mine.py:Mine"}}, ecl)
        own = polyfed.api.config_of(method=Eager)
        assert may_name({"name": own.method.name, "base": {"name": "fedavg"}}, own)

    @pytest.mark.parametrize("keys", [{"checkpoint.keep": 1}, {"init": "somewhere.safetensors"}])
    def test_settings_in_which_a_base_run_is_of_no_use(self, keys: Keys) -> None:
        assert pairs({"methods": ["fedavg", "ecl"], **polyfed.config.unflatten(keys)}) == {}

    def test_other_evaluation_is_another_run(self) -> None:
        rows = [
            {"name": "base", "method": "fedavg"},
            {"name": "often", "method": "fedavg-ft"},
            {"name": "seldom", "method": "fedavg-ft", "eval.every": 2},
        ]
        assert pairs({"rows": rows}) == {"often-s0": "base-s0"}

    @pytest.mark.parametrize("own", [Meddling, Eager])
    def test_methods_whose_rounds_or_answers_are_their_own(self, own: type[OnTop]) -> None:
        config = polyfed.api.config_of(method=own)
        assert not takes_rounds(config)

    def test_a_base_that_answers_by_another_model(self) -> None:
        assert pairs({"methods": ["ditto", "fedavg-ft"], "fedavg-ft": {"base": "ditto"}}) == {}

    @pytest.mark.parametrize("name", ON_TOP)
    def test_every_method_of_ours_on_top_takes_rounds(self, name: str) -> None:
        assert takes_rounds(polyfed.api.config_of(method=name))


def rows(run: Path, table: str) -> list[str]:
    """What a table of records says, but for the seconds of training.csv."""
    lines = [line.split(",") for line in (run / f"{table}.csv").read_text().splitlines()]
    if table == "training":
        seconds = lines[0].index("seconds")
        lines = [[*line[:seconds], *line[seconds + 1 :]] for line in lines]
    return sorted(",".join(line) for line in lines)


def equal(shared: polyfed.Result, alone: polyfed.Result) -> None:
    ours, theirs = ({k: v for k, v in r.summary.items() if k not in SPENT} for r in (shared, alone))
    assert ours == theirs
    for table in ("rounds", "clients", "classes", "training"):
        assert rows(shared.path, table) == rows(alone.path, table), table
    counts, others = shared.counts(), alone.counts()
    assert counts.keys() == others.keys()
    assert all((counts[name] == others[name]).all() for name in counts)


@pytest.fixture(scope="module")
def keys(tiny: Keys) -> Keys:
    """Every method on top, one of them on top of that, and some that have memories."""
    return {
        **tiny,
        "rounds": 2,
        "split.val": 0.2,
        "split.heldout": 1,
        "methods": [*ON_TOP, "fedavg", "scaffold"],
        "seeds": 1,
        "ecl": {"base": "fedavg-ft", "phase2_epochs": 1},
        "ecl-algorithm1": {"base": "scaffold", "phase2_epochs": 1},
        "fedafa": {"epochs": 1},
        "tau-norm": {"base": "scaffold", "tau": "search"},
    }


@pytest.fixture(scope="module")
def both(keys: Keys, tmp_path_factory: pytest.TempPathFactory) -> tuple[polyfed.Comparison, polyfed.Comparison]:
    """A comparison that shares, and one that does not."""
    folder = tmp_path_factory.mktemp("both")
    return tuple(polyfed.compare(keys, share=share, out=folder / str(share), jobs=1) for share in (True, False))  # type: ignore[return-value]


class TestTheSame:
    def test_as_made_by_each(self, both: tuple[polyfed.Comparison, polyfed.Comparison]) -> None:
        shared, alone = both
        assert shared.finished
        assert len(shared.results) == len(ON_TOP) + 2
        for ours, theirs in zip(shared.results, alone.results, strict=True):
            equal(ours, theirs)

    def test_it_is_named(self, both: tuple[polyfed.Comparison, polyfed.Comparison]) -> None:
        shared, alone = both
        found = {r.path.name: r.summary["phase_one"] for r in shared.results}
        base = {name: Path(said["run"]).name if said else None for name, said in found.items()}
        assert base == {
            "ecl-s0": "fedavg-ft-s0",
            "ecl-algorithm1-s0": "scaffold-s0",
            "fedafa-s0": "fedavg-s0",
            "fedavg-ft-s0": "fedavg-s0",
            "lws-s0": "fedavg-s0",
            "tau-norm-s0": "scaffold-s0",
            "fedavg-s0": None,
            "scaffold-s0": None,
        }
        assert not any(r.summary["phase_one"] for r in alone.results)
        log = (shared.path / "ecl-s0" / "log.txt").read_text()
        assert f"phase one is the run at {shared.path / 'fedavg-ft-s0'}" in log

    def test_what_the_shared_rounds_spent_stands_apart(
        self, both: tuple[polyfed.Comparison, polyfed.Comparison]
    ) -> None:
        by_name = {r.path.name: r.summary for r in both[0].results}
        base, tuned = by_name["fedavg-s0"], by_name["fedavg-ft-s0"]
        assert tuned["phase_one"]["bytes"]["up"] == base["bytes"]["up"]
        assert 0 < tuned["phase_one"]["seconds"]["total"] <= base["seconds"]["total"] + 0.001
        assert tuned["seconds"]["total"] > tuned["phase_one"]["seconds"]["total"]
        legend = both[0].table()
        assert "FedAvg-FT takes its rounds from FedAvg" in legend
        assert "takes its rounds" not in both[1].table()

    def test_a_cell_that_lost_its_end_ends_again(
        self, both: tuple[polyfed.Comparison, polyfed.Comparison], keys: Keys, tmp_path: Path
    ) -> None:
        """Stopped after the rounds were taken: what it has is enough, and is named again."""
        out = tmp_path / "c"
        shutil.copytree(both[0].path, out)
        cell = out / "fedavg-ft-s0"
        (cell / "summary.json").unlink()
        for name in (cell / "checkpoints").glob("*-finished"):
            shutil.rmtree(name)
        made = polyfed.resume(out, jobs=1)
        assert made.finished
        by_name = {r.path.name: r for r in made.results}
        alone = {r.path.name: r for r in both[1].results}
        equal(by_name["fedavg-ft-s0"], alone["fedavg-ft-s0"])
        assert by_name["fedavg-ft-s0"].summary["phase_one"]["run"] == str(both[0].path / "fedavg-s0")


def test_rounds_of_a_method_on_top_serve_the_others(tiny: Keys, tmp_path: Path) -> None:
    """There is no cell of the base: the first makes the rounds, and each has its own finish."""
    tree = {**tiny, "rounds": 2, "methods": ["ecl", "fedavg-ft", "lws"], "seeds": 1, "ecl": {"phase2_epochs": 1}}
    tree |= {"fedavg-ft": {"base": "fedper"}, "lws": {"base": "fedper"}, "split.heldout": 1}
    tree["ecl"]["base"] = "fedper"
    shared, alone = (polyfed.compare(tree, share=share, out=tmp_path / str(share), jobs=1) for share in (True, False))
    lent = {r.path.name: (r.summary["phase_one"] or {}).get("run") for r in shared.results}
    first = str(shared.path / "ecl-s0")
    assert lent == {"ecl-s0": None, "fedavg-ft-s0": first, "lws-s0": first}
    assert "takes its rounds from ECL" in shared.table()
    for ours, theirs in zip(shared.results, alone.results, strict=True):
        equal(ours, theirs)


def test_a_run_of_other_rounds_is_refused_as_phase_one(tiny: Keys, tmp_path: Path) -> None:
    other = polyfed.run(tiny, method={"name": "fedavg-ft", "base": "fedper"}, out=tmp_path / "a")
    with pytest.raises(polyfed.errors.UsageError, match=r"is not this phase one: .*method\.name"):
        polyfed.run(tiny, method="lws", init=str(other.path), out=tmp_path / "b")
    meddled = polyfed.run(tiny, method=Meddling, out=tmp_path / "c")
    with pytest.raises(polyfed.errors.UsageError, match="is not this phase one"):
        polyfed.run(tiny, method="lws", init=str(meddled.path), out=tmp_path / "d")


def test_a_base_that_fails_is_made_by_the_others_themselves(tiny: Keys, tmp_path: Path) -> None:
    out = tmp_path / "c"
    polyfed.run(tiny, method="fedavg", out=out / "fedavg-s0", **{"train.lr": 0.5})
    (out / "fedavg-s0" / "summary.json").unlink()  # it holds another experiment: the cell fails
    made = polyfed.compare(tiny, methods=["fedavg", "fedavg-ft"], seeds=1, out=out)
    assert list(made.failures) == ["fedavg-s0"]
    (tuned,) = made.results
    assert tuned.summary["phase_one"] is None
    assert tuned.fingerprint == polyfed.run(tiny, method="fedavg-ft").fingerprint


def test_hooks_are_all_looked_at() -> None:
    """A hook that OnTop takes from its base must be the base's for rounds to be shared."""
    words = {"family", "no_masks", "no_ids"}  # said of a method, and no hook
    hooks = {name for name in vars(OnTop) if name in vars(Method) and not name.startswith(("_", "model_"))} - words
    assert "merge" in hooks
    assert hooks <= set(ROUNDS)
