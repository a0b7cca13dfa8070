"""The command line: what it prints, what it writes, and that both say the same."""

import io
import json
import os
import shutil
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import yaml

from polyfed.cli import call
from polyfed.config import Config, make_config, read_config
from polyfed.engine.local import workers
from polyfed.measure.seconds import PHASES

Cli = Callable[..., Any]
Words = list[str]

GLOBAL = {"accuracy", "balanced", "head", "mid", "tail"}
CLIENTS = GLOBAL | {"std", "worst10", "best10"}
OVER_CLIENTS = ("personal", "personal_before", "personal_selected", "personal_classes", "global_local", "heldout")
TOP = {"run", "method", "seed", "rounds", "clients", "fingerprint", "global", *OVER_CLIENTS}
TOP |= {"bytes", "seconds", "rejected", "failed"}

# learns enough in two rounds for its numbers to differ from each other
LEARNS = ["rounds=2", "participation=0.7", "split.heldout=1", "train.lr=0.5", "seed=3"]


def value_of(said: Any) -> Any:
    """The one JSON value on stdout of a command that succeeded."""
    assert said.code == 0, said.err
    return json.loads(said.out)


@pytest.fixture(scope="module")
def made(cli: Cli, tiny_words: Words, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, Path]]:
    """What `run --json` said, and the run, of a method; each is run once."""
    kept: dict[str, tuple[Any, Path]] = {}

    def run(method: str) -> tuple[Any, Path]:
        if method not in kept:
            out = tmp_path_factory.mktemp("made") / method
            said = cli("run", *tiny_words, *LEARNS, f"method={method}", "--json", "--out", str(out))
            kept[method] = said, out
        return kept[method]

    return run


@pytest.fixture
def unfinished(made: Callable[[str], tuple[Any, Path]], tmp_path: Path) -> Path:
    """A copy of a run that lost its end."""
    run = Path(shutil.copytree(made("fedper")[1], tmp_path / "unfinished"))
    (run / "summary.json").unlink()
    return run


class TestRun:
    def test_summary_is_what_json_says(self, made: Any) -> None:
        said, run = made("fedavg")
        assert value_of(said) == json.loads((run / "summary.json").read_text())

    def test_progress_goes_to_stderr(self, made: Any) -> None:
        said, _ = made("fedavg")
        assert "2/2" in said.err

    @pytest.mark.parametrize("flags", [["--quiet"], ["--quiet", "--json"]])
    def test_quiet(self, flags: Words, cli: Cli, tiny_words: Words) -> None:
        said = cli("run", *tiny_words, *flags)
        assert (said.code, said.err) == (0, "")
        assert said.out

    def test_text(self, cli: Cli, tiny_words: Words, tmp_path: Path) -> None:
        said = cli("run", *tiny_words, "--quiet", "--out", str(tmp_path / "here"))
        head, _, row = said.out.strip().splitlines()[:3]
        assert head.split()[:4] == ["method", "global", "personal", "head"]
        assert row.startswith("FedAvg ")
        assert said.out.endswith(f"run: {tmp_path / 'here'}\n")

    def test_names_and_nesting(self, made: Any) -> None:
        summary = value_of(made("fedavg")[0])
        assert set(summary) >= TOP
        assert set(summary["global"]) == GLOBAL
        for measure in OVER_CLIENTS:
            assert set(summary[measure]) - {"masked"} == CLIENTS, measure
        assert set(summary["personal_classes"]["masked"]) == CLIENTS
        assert set(summary["bytes"]) == {"up", "down", "eval"}
        assert set(summary["seconds"]) == {"total", *PHASES}
        assert summary["rejected"] == summary["failed"] == {}

    def test_facts(self, made: Any) -> None:
        said, run = made("fedavg")
        summary = value_of(said)
        facts = {key: summary[key] for key in ("run", "method", "seed", "rounds", "clients")}
        assert facts == {"run": str(run), "method": "fedavg", "seed": 3, "rounds": 2, "clients": 4}
        assert len(bytes.fromhex(summary["fingerprint"])) == 32

    def test_accuracies_are_fractions(self, made: Any) -> None:
        summary = value_of(made("fedavg")[0])
        for measure in ("global", *OVER_CLIENTS):
            assert all(0 <= v <= 1 for k, v in summary[measure].items() if k != "masked" and v is not None), measure
        assert 0.1 < summary["global"]["accuracy"] < 1  # it learnt something

    def test_what_is_named_differently_is_different(self, made: Any) -> None:
        """GA, PA, PA_sel and PA_cls are four numbers; a method without a personal part answers with its global one."""
        summary = value_of(made("fedavg")[0])
        four = ("global", "personal", "personal_selected", "personal_classes")
        assert len({summary[measure]["accuracy"] for measure in four}) == 4
        assert summary["personal"] == summary["personal_before"] == summary["global_local"]

    def test_finish_makes_a_difference(self, made: Any) -> None:
        summary = value_of(made("fedavg-ft")[0])
        assert summary["personal"] != summary["personal_before"]
        assert summary["personal_before"] == summary["global_local"]
        assert summary["heldout"] is not None

    def test_null_where_there_is_none(self, made: Any, cli: Cli, tiny_words: Words) -> None:
        summary = value_of(made("fedper")[0])
        assert summary["global"] is None
        assert summary["global_local"] is None
        assert summary["personal"]["accuracy"] > 0
        assert value_of(cli("run", *tiny_words, "--json", "--quiet"))["heldout"] is None

    def test_bytes_are_counted(self, made: Any) -> None:
        """Two rounds of two clients each, and the records say the same as the summary."""
        said, run = made("fedavg")
        training = pandas.read_csv(run / "training.csv")
        assert len(training) == 4
        assert value_of(said)["bytes"]["up"] == training["bytes_up"].sum() == training["bytes_down"].sum()

    def test_files(self, made: Any) -> None:
        _, run = made("fedavg")
        files = {"config.yaml", "environment.json", "summary.json", "log.txt", "counts.npz"}
        files |= {"rounds.csv", "clients.csv", "classes.csv", "training.csv"}
        assert files <= {file.name for file in run.iterdir()}
        environment = json.loads((run / "environment.json").read_text())
        assert {"python", "torch", "numpy", "capability", "threads_per_process", "commit"} <= set(environment)
        assert "begins: method fedavg, seed 3" in (run / "log.txt").read_text()

    def test_records_open_in_pandas(self, made: Any) -> None:
        said, run = made("fedavg")
        summary = value_of(said)
        rounds, clients = pandas.read_csv(run / "rounds.csv"), pandas.read_csv(run / "clients.csv")
        last = rounds[(rounds["round"] == 2) & (rounds["measure"] == "global")]
        assert last["accuracy"].item() == summary["global"]["accuracy"]
        final = clients[clients["measure"] == "personal_final"]
        assert final["accuracy"].mean() == pytest.approx(summary["personal"]["accuracy"])
        assert len(final) == 3  # one of the four is held out
        assert list(clients[clients["measure"] == "heldout"]["client"]) == sorted(set(range(4)) - set(final["client"]))
        classes = pandas.read_csv(run / "classes.csv")
        assert set(classes[classes["measure"] == "global"]["class"]) == set(range(10))

    def test_same_words_same_bits(self, made: Any, cli: Cli, tiny_words: Words) -> None:
        again = value_of(cli("run", *tiny_words, *LEARNS, "--json", "--quiet"))
        first = value_of(made("fedavg")[0])
        assert again["fingerprint"] == first["fingerprint"]
        assert value_of(made("fedper")[0])["fingerprint"] != first["fingerprint"]


class TestConfigFile:
    def test_is_complete_and_reads_back(self, made: Any) -> None:
        tree = read_config(made("fedavg-ft")[1] / "config.yaml")
        assert set(tree) == set(Config.model_fields)
        assert make_config(tree).dump() == tree
        assert (tree["rounds"], tree["split"]["heldout"], tree["seed"]) == (2, 1, 3)
        assert tree["method"]["base"] == {"name": "fedavg"}

    def test_makes_the_same_run_again(self, made: Any, cli: Cli) -> None:
        said, run = made("fedper")
        again = value_of(cli("run", str(run / "config.yaml"), "--json", "--quiet"))
        assert again["fingerprint"] == value_of(said)["fingerprint"]

    def test_is_not_there_where_the_data_are_missing(self, cli: Cli, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        said = cli("run", "data=mnist", f"data.root={tmp_path / 'empty'}", "train.lr=0.3", "--out", str(tmp_path / "r"))
        assert said.code == 3
        assert not (tmp_path / "r").exists()

    @pytest.mark.parametrize("way", ["words", "file"])
    def test_values_are_read_by_type(self, way: str, cli: Cli, tiny_words: Words, tmp_path: Path) -> None:
        pairs = {"train.weight_decay": "1e-5", "train.nesterov": "false", "train.schedule": "{2: 1e-1}"}
        pairs |= {"gate.norm": "1E3", "train.clip": "null", "checkpoint.every": "2"}
        file = tmp_path / "typed.yaml"
        file.write_text("\n".join(f"{key}: {value}" for key, value in pairs.items()))
        given = [str(file)] if way == "file" else [f"{key}={value}" for key, value in pairs.items()]
        assert cli("run", *given, *tiny_words, "--quiet", "--out", str(tmp_path / "r")).code == 0
        tree = yaml.safe_load((tmp_path / "r" / "config.yaml").read_text())  # any reader of YAML sees the types
        assert tree["train"]["weight_decay"] == 1e-5
        assert tree["train"]["nesterov"] is False
        assert tree["train"]["schedule"] == {2: 0.1}
        assert tree["train"]["clip"] is None
        assert tree["gate"]["norm"] == 1000.0
        assert tree["checkpoint"]["every"] == 2

    def test_bare_values_set_the_name(self, cli: Cli, tiny_words: Words, tmp_path: Path) -> None:
        words = ["method=fedavg-ft", "method.base.mu=0.1", "method.base=fedprox", "model=mlp-bn", "data=digits"]
        said = cli("run", *tiny_words, *words, "engine=local", "--quiet", "--out", str(tmp_path / "r"))
        assert said.code == 0, said.err
        tree = read_config(tmp_path / "r" / "config.yaml")
        assert tree["method"]["name"] == "fedavg-ft"
        assert tree["method"]["base"] == {"name": "fedprox", "mu": 0.1}
        assert [tree[key]["name"] for key in ("model", "data", "engine")] == ["mlp-bn", "digits", "local"]

    def test_words_come_over_the_file(self, cli: Cli, tiny_words: Words, tmp_path: Path) -> None:
        (tmp_path / "c.yaml").write_text("seed: 5\ntrain: {lr: 0.3, schedule: {5: 0.1}}\nmethod: fedprox\n")
        words = ["seed=6", "train.schedule={7: 0.2}", "method.mu=0.5"]
        cli("run", str(tmp_path / "c.yaml"), *tiny_words, *words, "--quiet", "--out", str(tmp_path / "r"))
        tree = read_config(tmp_path / "r" / "config.yaml")
        assert (tree["seed"], tree["train"]["lr"]) == (6, 0.3)
        assert tree["train"]["schedule"] == {7: 0.2}  # a schedule is one value: it is replaced, not mixed
        assert tree["method"] == {"name": "fedprox", "mu": 0.5}

    def test_nothing_given_is_fedavg_on_digits(self) -> None:
        tree = make_config().dump()
        assert [tree[key]["name"] for key in ("method", "data", "model")] == ["fedavg", "digits", "mlp"]


class TestWhere:
    def test_out_is_the_run_itself(self, cli: Cli, tiny_words: Words, tmp_path: Path, runs: Path) -> None:
        (tmp_path / "here").mkdir()  # an empty one is taken
        summary = value_of(cli("run", *tiny_words, "--json", "--out", str(tmp_path / "here")))
        assert summary["run"] == str(tmp_path / "here")
        assert (tmp_path / "here" / "summary.json").exists()
        assert not runs.exists()

    def test_new_ones_under_polyfed_out(self, cli: Cli, tiny_words: Words, runs: Path) -> None:
        paths = {value_of(cli("run", *tiny_words, "--json", "--quiet"))["run"] for _ in range(2)}
        assert paths == {str(path) for path in runs.iterdir()}
        assert len(paths) == 2

    def test_runs_is_the_default(
        self, cli: Cli, tiny_words: Words, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("POLYFED_OUT")
        monkeypatch.chdir(tmp_path)
        cli("run", *tiny_words, "--quiet")
        (run,) = (tmp_path / "runs").iterdir()
        assert (run / "summary.json").exists()


class TestShowAndResume:
    @pytest.mark.parametrize("command", ["show", "resume"])
    def test_finished(self, command: str, made: Any, cli: Cli) -> None:
        said, run = made("fedavg")
        assert value_of(cli(command, str(run), "--json")) == value_of(said)
        text = cli(command, str(run), "--quiet")
        assert (text.code, text.err) == (0, "")
        assert "fedavg" in text.out
        assert f"run: {run}" in text.out

    def test_show_of_an_unfinished_one(self, cli: Cli, unfinished: Path) -> None:
        shown = value_of(cli("show", str(unfinished), "--json"))
        assert shown == {"run": str(unfinished), "finished": False, "round": 2, "rounds": 2}
        text = cli("show", str(unfinished)).out
        assert text == f"{unfinished}: 2 of 2 rounds done; go on with: polyfed resume {unfinished}\n"

    def test_resume_ends_as_if_nothing_had_happened(self, made: Any, cli: Cli, unfinished: Path) -> None:
        again, first = value_of(cli("resume", str(unfinished), "--json")), value_of(made("fedper")[0])
        for changed in ("run", "seconds", "bytes"):  # bytes: evaluated twice
            again.pop(changed), first.pop(changed)
        assert again == first

    def test_resume_with_another_number_of_workers(self, made: Any, cli: Cli, unfinished: Path) -> None:
        shutil.rmtree(unfinished / "checkpoints")  # from the start
        again = value_of(cli("resume", str(unfinished), "--workers", "1", "--json", "--quiet"))
        assert again["fingerprint"] == value_of(made("fedper")[0])["fingerprint"]

    def test_interrupted_and_resumed(self, made: Any, cli: Cli, tiny_words: Words, tmp_path: Path) -> None:
        (tmp_path / "stopping.py").write_text(STOPPING)
        out = str(tmp_path / "r")
        words = [*tiny_words, *LEARNS, f"method={tmp_path / 'stopping.py'}:Stopping"]
        said = cli("run", *words, "--quiet", "--out", out)
        assert said.code == 130
        assert said.err == f"polyfed: interrupted after round 1; go on with: polyfed resume {out}\n"
        assert value_of(cli("show", out, "--json"))["round"] == 1
        again = value_of(cli("resume", out, "--json", "--quiet"))
        assert again["fingerprint"] == value_of(made("fedavg")[0])["fingerprint"]


STOPPING = '''
import os, signal
from polyfed.methods import Method

class Stopping(Method):
    """FedAvg whose user presses Ctrl-C in the first round."""
    def merge(self, server, uploads):
        super().merge(server, uploads)
        if server.round == 1:
            os.kill(os.getpid(), signal.SIGINT)
'''

MINE = '''
from polyfed.methods import Method
from polyfed.registry import param

class Mine(Method):
    """FedAvg with a louder loss."""

    strength: float = param(1.0, "how loud", gt=0)

    def loss(self, client, batch):
        return self.strength * super().loss(client, batch)
'''


@pytest.fixture
def mine(tmp_path: Path) -> str:
    """The import path of a user's own method."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine.py").write_text(MINE)
    return f"{tmp_path / 'elsewhere' / 'mine.py'}:Mine"


class TestOwnMethod:
    def test_runs_with_its_parameters(self, mine: str, made: Any, cli: Cli, tiny_words: Words) -> None:
        def fingerprint(strength: float, workers: int) -> str:
            words = [*tiny_words, *LEARNS, f"method={mine}", f"method.strength={strength}", f"engine.workers={workers}"]
            summary = value_of(cli("run", *words, "--json", "--quiet"))
            assert summary["method"] == mine
            assert summary["failed"] == {}
            return summary["fingerprint"]

        fedavg = value_of(made("fedavg")[0])["fingerprint"]
        assert fingerprint(1, workers=0) == fedavg
        assert fingerprint(2, workers=0) == fingerprint(2, workers=1) != fedavg

    def test_is_described(self, mine: str, cli: Cli) -> None:
        entry = value_of(cli("methods", mine, "--json"))
        assert entry["what"] == "FedAvg with a louder loss."
        assert [(p["name"], p["default"], p["range"]) for p in entry["params"]] == [("strength", 1.0, {"gt": 0})]

    def test_wrong_parameter(self, mine: str, cli: Cli, tiny_words: Words) -> None:
        said = cli("run", *tiny_words, f"method={mine}", "method.strenght=2")
        assert (said.code, "did you mean 'strength'?" in said.err) == (2, True)

    def test_in_a_comparison(self, mine: str, cli: Cli, tiny_words: Words) -> None:
        words = [*tiny_words, f"methods=[fedavg,{mine}]", "seeds=1", "Mine.strength=2", "train.lr=0.5"]
        fedavg, own = value_of(cli("compare", *words, "--json", "--quiet"))["runs"]
        assert own["method"] == mine
        assert read_config(Path(own["run"]) / "config.yaml")["method"]["strength"] == 2
        assert own["fingerprint"] != fedavg["fingerprint"]

    def test_a_method_of_the_package_keeps_its_name(self, cli: Cli, tiny_words: Words) -> None:
        words = [*tiny_words, "method=polyfed.methods.fedprox:FedProx", "method.mu=0.2"]
        assert value_of(cli("run", *words, "--json", "--quiet"))["method"] == "fedprox"
        assert "fedprox" in {entry["name"] for entry in value_of(cli("methods", "--json"))}


@pytest.fixture(scope="module")
def compared(cli: Cli, tiny_words: Words, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    out = tmp_path_factory.mktemp("compared") / "all"
    words = [*tiny_words, "methods=[fedavg,fedprox,fedper]", "seeds=2", "fedprox.mu=0.5", "rounds=2"]
    words += ["participation=0.5", "train.lr=0.3", "train.batch=500", "train.epochs=2"]  # two steps a round
    return cli("compare", *words, "--json", "--out", str(out)), out


class TestCompare:
    def test_one_run_per_seed_and_method(self, compared: Any) -> None:
        said, out = compared
        value = value_of(said)
        assert set(value) == {"comparison", "runs", "table", "missing", "failed", "report"}
        assert (value["missing"], value["failed"]) == ([], {})
        assert value["comparison"] == str(out)
        assert {(r["method"], r["seed"]) for r in value["runs"]} == {
            (method, seed) for method in ("fedavg", "fedprox", "fedper") for seed in (0, 1)
        }
        for run in value["runs"]:
            assert json.loads((Path(run["run"]) / "summary.json").read_text()) == run

    def test_methods_share_all_but_themselves(self, compared: Any) -> None:
        """Split, selection, batches and initial model: for two steps FedProx still is where FedAvg is."""
        runs = {(r["method"], r["seed"]): Path(r["run"]) for r in value_of(compared[0])["runs"]}
        tables = {key: pandas.read_csv(path / "training.csv") for key, path in runs.items()}
        same = ["round", "attempt", "client", "status", "samples", "steps", "bytes_down", "bytes_up"]
        for seed in (0, 1):
            fedavg, fedprox = tables["fedavg", seed], tables["fedprox", seed]
            pandas.testing.assert_frame_equal(fedavg[same], fedprox[same])
            assert list(fedavg["loss"][fedavg["round"] == 1]) == list(fedprox["loss"][fedprox["round"] == 1])
            assert list(fedavg["client"]) == list(tables["fedper", seed]["client"])
        assert list(tables["fedavg", 0]["samples"]) != list(tables["fedavg", 1]["samples"])
        ends = {key: json.loads((path / "summary.json").read_text())["fingerprint"] for key, path in runs.items()}
        assert len(set(ends.values())) == 6

    def test_tables(self, compared: Any) -> None:
        said, out = compared
        value = value_of(said)
        fedavg = [r["personal"]["accuracy"] for r in value["runs"] if r["method"] == "fedavg"]
        mean, std = statistics.fmean(fedavg), statistics.stdev(fedavg)
        table = pandas.read_csv(out / "table.csv").set_index("method")
        assert (out / "table.csv").read_text() == value["table"]
        assert table.loc["fedavg", "personal mean"] == pytest.approx(mean)
        assert table.loc["fedavg", "personal std"] == pytest.approx(std)
        assert table.loc["fedavg", "seeds"] == 2
        assert pandas.isna(table.loc["fedper", "global mean"])
        cell = f"{100 * mean:.1f} ± {100 * std:.1f}"
        assert f"| {cell} |" in (out / "table.md").read_text()
        assert cell in (out / "table.txt").read_text()
        assert cell.replace("±", r"$\pm$") in (out / "table.tex").read_text()

    def test_text(self, cli: Cli, tiny_words: Words, tmp_path: Path) -> None:
        said = cli("compare", *tiny_words, "methods=fedavg", "seeds=[4]", "--quiet", "--out", str(tmp_path / "c"))
        assert (said.code, said.err) == (0, "")
        report = tmp_path / "c" / "report.html"
        assert said.out.endswith(f"runs and tables: {tmp_path / 'c'}\nreport: {report}\n")
        assert "FedAvg on digits" in report.read_text()
        assert (tmp_path / "c" / "fedavg-s4" / "summary.json").exists()

    def test_a_key_for_one_method_and_chosen_columns(self, cli: Cli, tiny_words: Words, tmp_path: Path) -> None:
        out = tmp_path / "c"
        words = [*tiny_words, "methods=fedavg,ditto", "seeds=1", "ditto.train.lr=0.5", "--out", str(out), "--quiet"]
        said = cli("compare", *words, "--columns", "tail,personal")
        assert (said.code, said.err) == (0, "")
        rows = [line.split() for line in said.out.splitlines()[1:5] if "--" not in line]
        assert [row[:2] for row in rows] == [["method", "train.lr"], ["FedAvg", "0.05"], ["Ditto", "0.5"]]
        assert rows[0][2:] == ["tail", "personal"]
        table = pandas.read_csv(out / "table.csv")
        assert list(table.columns[:4]) == ["method", "train.lr", "seeds", "tail mean"]
        assert list(table["method"]) == ["fedavg", "ditto"]
        assert list(table["train.lr"]) == [0.05, 0.5]
        used = [json.loads((out / f"{name}-s0" / "summary.json").read_text()) for name in ("fedavg", "ditto")]
        assert used[0]["fingerprint"] != used[1]["fingerprint"]
        assert "train.lr" in (out / "report.html").read_text().partition("</thead>")[0]
        shown = cli("show", str(out), "--columns", "worst-10")
        assert shown.out.splitlines()[1].split() == ["method", "train.lr", "worst", "10", "%"]

    def test_seeds(self, cli: Cli, tiny_words: Words) -> None:
        """A number of seeds is 0..n-1, a list is itself."""
        for seeds, meant in (("1", [0]), ("[7,5]", [7, 5])):
            value = value_of(cli("compare", *tiny_words, "methods=[local]", f"seeds={seeds}", "--json", "--quiet"))
            assert [run["seed"] for run in value["runs"]] == meant

    def test_workers_serve_all_runs(self, cli: Cli, tiny_words: Words, monkeypatch: pytest.MonkeyPatch) -> None:
        started = []

        class Counted(workers.Worker):
            def __init__(self, *args: Any) -> None:
                super().__init__(*args)
                started.append(self.process.pid)

        monkeypatch.setattr(workers, "Worker", Counted)
        words = [*tiny_words, "methods=[fedavg,fedper]", "seeds=1", "engine.workers=1", "jobs=1"]
        value = value_of(cli("compare", *words, "--json", "--quiet"))
        assert len(value["runs"]) == 2
        assert len(started) == 1
        with pytest.raises(ProcessLookupError):  # and they are gone afterwards
            os.kill(started[0], 0)

    def test_file(self, cli: Cli, tiny_words: Words, tmp_path: Path) -> None:
        (tmp_path / "c.yaml").write_text("methods: [fedavg, fedprox]\nseeds: 2\nfedprox.mu: 0.25\n")
        words = [str(tmp_path / "c.yaml"), *tiny_words, "seeds=1", "--json", "--quiet"]
        runs = value_of(cli("compare", *words))["runs"]
        assert [(r["method"], r["seed"]) for r in runs] == [("fedavg", 0), ("fedprox", 0)]
        assert read_config(Path(runs[1]["run"]) / "config.yaml")["method"]["mu"] == 0.25


class TestSplit:
    WORDS = ("split", "split.clients=6", "split.longtail=10", "split.val=0.1", "split.alpha=0.3", "data.limit=50")

    def test_fields_and_sums(self, cli: Cli) -> None:
        split = value_of(cli(*self.WORDS, "--json"))
        assert {"total", "classes", "global_test", "clients", "imbalance_factor", "mean_distance"} <= set(split)
        clients = split["clients"]
        assert [client["id"] for client in clients] == list(range(6))
        assert all({"id", "train", "val", "test", "counts"} <= set(client) for client in clients)
        assert split["total"] == sum(c["train"] + c["val"] + c["test"] for c in clients)
        assert all(sum(client["counts"]) == client["train"] for client in clients)
        assert all(len(client["counts"]) == split["classes"] == 10 for client in clients)

    def test_how_skewed(self, cli: Cli) -> None:
        """50 of the first class and 5 of the last, as the long tail says; even parts are near the global mix."""
        split = value_of(cli(*self.WORDS, "--json"))
        assert split["total"] == sum(int(50 * 10 ** (-c / 9)) for c in range(10))
        assert split["imbalance_factor"] == 10
        even = value_of(cli("split", "split.partition=iid", "split.clients=4", "--json"))
        assert even["imbalance_factor"] < 1.1
        assert even["mean_distance"] < 0.1 < split["mean_distance"] < 1

    def test_drawn(self, cli: Cli) -> None:
        said = cli(*self.WORDS)
        assert (said.code, said.err) == (0, "")
        rows = [line for line in said.out.splitlines() if line.endswith("|")]
        assert len(rows) == 6
        assert all(len(row.split("|")[1]) == 10 for row in rows)
        assert sum(row.count("█") for row in rows) >= 1
        assert "6 clients" in said.out

    def test_trains_nothing(self, cli: Cli, runs: Path) -> None:
        assert cli(*self.WORDS, "--quiet").code == 0
        assert not runs.exists()

    def test_users_are_clients(self, cli: Cli, tmp_path: Path) -> None:
        """All of them, unless fewer are asked for."""
        for user in ("anna", "bob", "carl"):
            (tmp_path / "users" / user).mkdir(parents=True)
            np.savez(tmp_path / "users" / user / "all.npz", x=np.zeros((8, 2), np.float32), y=np.arange(8) % 2)
        words = ["split", "data=folder", f"data.root={tmp_path / 'users'}", "split.partition=users", "--json"]
        assert [client["name"] for client in value_of(cli(*words))["clients"]] == ["anna", "bob", "carl"]
        assert len(value_of(cli(*words, "split.clients=2"))["clients"]) == 2

    def test_seed_changes_who_holds_what(self, cli: Cli) -> None:
        def counts(*words: str) -> Any:
            return [client["counts"] for client in value_of(cli(*self.WORDS, *words, "--json"))["clients"]]

        assert counts() == counts("seed=0") != counts("seed=1")
        assert counts("split.seed=1") == counts("seed=1") == counts("seed=5", "split.seed=1")


class TestCatalogues:
    def test_methods(self, cli: Cli) -> None:
        entries = {entry["name"]: entry for entry in value_of(cli("methods", "--json"))}
        assert {"fedavg", "local", "fedavg-ft", "fedprox", "fedper"} <= set(entries)
        assert all({"name", "paper", "params", "wire"} <= set(entry) for entry in entries.values())
        assert all(entry["paper"] and entry["what"] for entry in entries.values())
        (mu,) = entries["fedprox"]["params"]
        assert (mu["name"], mu["type"], mu["default"], mu["range"]) == ("mu", "float", 0.01, {"ge": 0})
        assert set(entries["fedavg"]["wire"]["down"]) == set(entries["fedavg"]["wire"]["up"]) == {"w"}
        assert entries["local"]["wire"]["down"] == entries["local"]["wire"]["up"] == {}
        assert "head" in entries["fedper"]["personal"]

    def test_one_method(self, cli: Cli) -> None:
        entry = value_of(cli("methods", "fedprox", "--json"))
        assert entry in value_of(cli("methods", "--json"))
        text = cli("methods", "fedprox").out
        assert "Li et al. 2020" in text
        assert "method.mu = 0.01  (float, >= 0)  strength of the proximal pull" in text
        assert "goes down:" in text

    def test_rows_of_papers_and_the_whole_page(self, cli: Cli) -> None:
        rows = json.loads(cli("methods", "--rows", "--json").out)
        assert {"name", "what", "table", "keys", "reads"} == set(rows[0])
        assert cli("methods", "--rows").out.startswith("fedavg+local: ")
        assert cli("methods", "--markdown").out.startswith("# Catalogue of methods\n")
        refused = cli("methods", "fedavg", "--rows")
        assert refused.code == 2
        assert "a method's name goes with neither --rows nor --markdown" in refused.err

    def test_one_line_a_method(self, cli: Cli) -> None:
        text, entries = cli("methods").out, value_of(cli("methods", "--json"))
        assert [line.split()[0] for line in text.splitlines() if line.startswith("  ")] == [e["name"] for e in entries]

    def test_data(self, cli: Cli) -> None:
        entries = {entry["name"]: entry for entry in value_of(cli("data", "--json"))}
        assert {"digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "uci-har", "folder"} <= set(entries)
        root = next(p for p in entries["folder"]["params"] if p["name"] == "root")
        assert (root["required"], root["default"]) == (True, None)
        assert value_of(cli("data", "digits", "--json")) == entries["digits"]
        assert [line.split()[0] for line in cli("data").out.splitlines()] == list(entries)

    def test_one_source(self, cli: Cli) -> None:
        text = cli("data", "folder").out
        assert "data.root must be given" in text
        assert "data.limit = None  (int | None, >= 1)  training samples kept per class" in text


def test_reader_that_has_seen_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """`polyfed methods | head -1` is no failure."""

    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    assert call(["methods", "--json"]) == 0


class TestHelp:
    @pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
    def test_all_commands(self, words: Words, cli: Cli) -> None:
        said = cli(*words)
        assert (said.code, said.err) == (0, "")
        for command in ("run", "compare", "resume", "show", "methods", "data", "split"):
            assert f"\n  {command} " in said.out
        assert "Usage: polyfed " in said.out

    def test_one_command(self, cli: Cli) -> None:
        said = cli("compare", "--help")
        assert "methods=fedavg,fedprox seeds=5" in " ".join(said.out.split())
        assert all(option in said.out for option in ("--out", "--json", "--quiet"))
