"""A real federation on loopback: a guard, a SuperLink, three SuperNodes, TLS, keys, attacks, kills, a large model."""

import csv
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

import masked
import polyfed
from federations import free_ports, make_federation
from killing import wait_for
from polyfed.config import make_config, read_yaml, write_yaml
from polyfed.errors import DataError, UsageError
from polyfed.message import Memory, Message
from polyfed.threats.accountant import epsilon_of

if importlib.util.find_spec("flwr") is None:
    pytest.skip("flwr is not installed", allow_module_level=True)

from polyfed.engine.flower.deploy import check, control, keys, layout, probes, processes, schema
from polyfed.engine.statements import fault_of_hello, known_of
from polyfed.engine.work import Job

SITES = ("a", "b", "c")
HOST = "127.0.0.2"  # loopback too, but not where the SuperLink listens
OWN = Path(__file__).parents[2] / "own_methods.py"
WORDS = ["rounds=2", "model.width=0.1", "train.batch=16", "eval.every=9", "engine.deadline=200", "data.classes=10"]


def make_samples(folder: Path, k: int) -> None:
    """Some digits, of some classes only."""
    digits = load_digits()
    rows = np.random.default_rng(k).permutation(len(digits.target))[:80]
    rows = rows[digits.target[rows] % 3 != k]
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "digits.npz", x=(digits.data[rows] / 16).astype("float32"), y=digits.target[rows])


def change(file: Path, **keys) -> None:
    """Other values in a file of settings."""
    file.write_text(write_yaml(read_yaml(file.read_text(), str(file)) | keys))


class Federation:
    """A federation of three sites with its processes; its public address is one that the SuperLink has not."""

    def __init__(self, path: Path, cli):
        self.path, self.cli = path, cli
        self.processes: dict[str, subprocess.Popen] = {}
        make_federation(path, cli, "c,a,b", "--host", HOST, *WORDS)
        for k, name in enumerate(SITES):
            make_samples(path / "sites" / name / "data", k)
            shutil.copytree(path / "sites" / name / "data", path / "together" / name)
            change(path / "sites" / name / "site.yaml", allow=[f"{OWN}:Failing", f"{OWN}:Lying"])

    def start(self, name: str) -> None:
        """A start script, as people call it."""
        folder = self.path / ("server" if name == "server" else f"sites/{name}")
        log = (self.path / f"{name}.log").open("ab")
        self.processes[name] = subprocess.Popen(
            [folder / "start.sh"], stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
        )

    def log(self, name: str) -> str:
        return (self.path / f"{name}.log").read_text()

    def wait_for_server(self) -> None:
        seen = self.log("server").count("sites may join") if (self.path / "server.log").exists() else 0
        self.start("server")
        assert wait_for(lambda: self.log("server").count("sites may join") > seen, 120, 0.2), self.log("server")

    def child(self, name: str, program: str) -> int:
        """The part of Flower's that a start script runs."""
        mine = self.processes[name].pid
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                except OSError:
                    continue
                if parent == mine and program.encode() in words:
                    return int(entry.name)
        raise LookupError(program)

    def deploy(self, command: str, *words: str) -> subprocess.Popen:
        line = [sys.executable, "-m", "polyfed.cli", "deploy", command, str(self.path), *words, "--json"]
        return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def done(self, process: subprocess.Popen, seconds: float = 400) -> tuple[int, dict, str]:
        out, err = process.communicate(timeout=seconds)
        return process.returncode, json.loads(out) if out else {}, err

    def locally(self, out: Path, **changes):
        """The same experiment on the local engine, from the same folders put together."""
        tree = layout.Server.at(self.path).config
        engine = {"name": "local", "workers": 0}
        return polyfed.run(tree, {"data.root": str(self.path / "together"), **changes}, engine=engine, out=out)

    def newest(self) -> Path:
        return max((self.path / "server" / "runs").glob("run-*"))

    def end(self) -> None:
        for name in (*SITES, "server"):
            if name in self.processes:
                self.processes[name].terminate()
        for process in self.processes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture(scope="module")
def federation(tmp_path_factory, cli):
    made = Federation(tmp_path_factory.mktemp("deploy") / "federation", cli)
    try:
        made.wait_for_server()
        for name in SITES:
            made.start(name)
        for name in SITES:
            assert wait_for(lambda name=name: "SuperNode ID" in made.log(name), 200, 0.2), made.log(name)
        yield made
    finally:
        made.end()


# ---- without a process


@pytest.fixture
def folder(tmp_path, cli):
    """A federation on disk with its data."""
    assert cli("deploy", "init", str(tmp_path / "f"), "--sites", "a,b,c", "--port", "9").code == 0
    for k, name in enumerate(SITES):
        make_samples(tmp_path / "f" / "sites" / name / "data", k)
    return tmp_path / "f"


def test_init_writes_a_federation_whose_private_keys_only_the_owner_reads(folder):
    assert check.check(folder)
    for name in SITES:
        assert check.check(folder, name)
        assert (folder / "sites" / name / "key").stat().st_mode & 0o077 == 0
    assert (folder / "ca" / "ca.key").stat().st_mode & 0o077 == 0
    readme = (folder / "README.md").read_text()
    for command in ("deploy check", "server/start.sh", "start.sh", "deploy run", "polyfed predict"):
        assert command in readme


def test_start_scripts_check_first_and_no_path_tells_anybody(folder):
    for script in (folder / "server" / "start.sh", folder / "sites" / "a" / "start.sh"):
        text = script.read_text()
        assert text.index("deploy check") < text.index("exec polyfed")
        assert "FLWR_TELEMETRY_ENABLED=0" in text
    around = layout.flower_environment(folder)
    assert around["FLWR_TELEMETRY_ENABLED"] == around["RAY_USAGE_STATS_ENABLED"] == "0"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--sites", "a"], "at least two sites"),
        (["--sites", "a,a"], "different names"),
        (["--sites", "a,../b"], "letters of any script, digits, - and _"),
        (["--sites", "a,b c"], "'b c' is none"),
        (["--sites", "a,-b"], "begins with a letter or digit"),
        (["--sites", f"a,{'ü' * 41}"], "at most 40 letters"),
        (["--sites", "Süd,süd"], "different names"),
        (["--sites", "s\u00fcd,su\u0308d"], "different names"),
        (["--sites", "a,b", "--host", "fl example.org"], "a host is a name"),
        (["--sites", "a,b", "--port", "65533"], "--port is the first of 4 ports"),
        (["--sites", "a,b", "rounds=0"], "rounds"),
    ],
)
def test_a_federation_that_cannot_be_is_refused(tmp_path, cli, words, sentence):
    said = cli("deploy", "init", str(tmp_path / "f"), *words)
    assert said.code == 2
    assert sentence in said.err
    assert not (tmp_path / "f").exists()


def test_check_names_what_is_wrong_with_certificates_keys_and_data(folder, tmp_path, cli, monkeypatch):
    other = tmp_path / "other"
    cli("deploy", "init", str(other), "--sites", "a,b")
    site, server = folder / "sites" / "a", folder / "server"
    (site / "key").chmod(0o644)
    assert "chmod 600" in cli("deploy", "check", str(site)).err
    (site / "key").chmod(0o600)
    shutil.copy(other / "sites" / "a" / "key", site / "key")
    assert "does not belong to" in cli("deploy", "check", str(folder), "--site", "a").err
    shutil.copy(other / "server" / "ca.crt", server / "ca.crt")
    assert "was not made by the CA" in cli("deploy", "check", str(folder)).err
    (folder / "sites" / "b" / "data" / "digits.npz").write_bytes(b"nonsense")
    assert cli("deploy", "check", str(folder), "--site", "b").code == 3
    monkeypatch.setattr(keys, "DAYS", -0.001)
    (other / "server" / "server.key").unlink()
    keys.make_server_certificate(other / "ca", other / "server", "127.0.0.1")
    assert "expired on" in cli("deploy", "check", str(other)).err


def test_sites_have_names_of_any_script(tmp_path, cli):
    names = ["nord", "su\u0308d", "Москва", "दिल्ली"]
    assert cli("deploy", "init", str(tmp_path / "f"), "--sites", ",".join(names), "--port", "9").code == 0
    assert sorted(folder.name for folder in (tmp_path / "f" / "sites").iterdir()) == sorted(
        ["nord", "s\u00fcd", "Москва", "दिल्ली"]
    )
    assert cli("deploy", "check", str(tmp_path / "f")).code == 0
    make_samples(tmp_path / "f" / "sites" / "s\u00fcd" / "data", 0)
    for name in ("s\u00fcd", "su\u0308d"):  # however it is typed
        said = cli("deploy", "check", str(tmp_path / "f"), "--site", name)
        assert (said.code, said.err) == (0, "")
        assert "site s\u00fcd: " in said.out


def test_check_counts_the_classes_a_site_has(folder):
    """Six classes with labels up to eight are six."""
    (file,) = (folder / "sites" / "a" / "data").iterdir()
    np.savez(file, x=np.zeros((30, 3), "float32"), y=np.array([0, 2, 3, 4, 6, 8] * 5))
    assert check.check(folder, "a")[-1].startswith(
        "site a: 30 samples of float32 3, 6 classes (labels up to 8: data.cl"
    )
    np.savez(file, x=np.zeros((30, 3), "float32"), y=np.arange(30) % 3)
    assert check.check(folder, "a")[-1].endswith(", 3 classes")


def test_another_federations_certificates_are_found_offline(folder, tmp_path, cli):
    """Though a site's folder agrees with itself."""
    other = tmp_path / "other"
    cli("deploy", "init", str(other), "--sites", "a,b")
    ours, theirs = folder / "sites" / "a", other / "sites" / "a"
    shutil.copy(theirs / "ca.crt", ours / "ca.crt")
    assert "was not made by the CA" in cli("deploy", "check", str(ours)).err
    for file in ("site.crt", "site.key"):
        shutil.copy(theirs / file, ours / file)
    said = cli("deploy", "check", str(folder))
    assert said.code == 3
    assert f"{ours / 'ca.crt'} is another federation's: it is not the CA of {folder / 'server'}" in said.err
    for file in ("ca.crt", "site.crt", "site.key"):
        shutil.copy((folder / "server" if file == "ca.crt" else folder / "sites" / "b") / file, ours / file)
    shutil.copy(theirs / "trusted.yaml", ours / "trusted.yaml")
    assert "trusted.yaml is another federation's" in cli("deploy", "check", str(folder)).err


def test_check_reads_tables_and_images_of_several_sizes(tmp_path):
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "visits.csv").write_text("age,dose,label\n1,2,cat\n3,4,dog\n")
    data, shape = check._data_of(SimpleNamespace(data=tmp_path / "table"))
    assert (len(data.y), data.class_names, shape) == (2, ("cat", "dog"), "2")
    for side in (6, 9):
        (tmp_path / "images" / "cat").mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((side, side), np.uint8)).save(tmp_path / "images" / "cat" / f"{side}.png")
    data, shape = check._data_of(SimpleNamespace(data=tmp_path / "images"))
    assert len(data.y) == 2
    assert shape == "in several sizes (the config must have data.size)"


def test_without_flower_every_command_says_what_to_install(folder, cli, monkeypatch):
    from polyfed.engine import flower

    monkeypatch.setattr(flower.importlib.util, "find_spec", lambda name: None)
    for command in ("init", "check", "sign", "serve", "join", "run", "resume", "status"):
        said = cli("deploy", command, str(folder))
        assert said.code == 2
        assert "pip install 'polyfed[flower]'" in said.err


def test_sites_that_differ_are_named_with_what_differs():
    one = schema.Schema(("0", "1"), (64,), "float32", None, ("polyfed 1",))
    assert schema.agreed({"a": one, "b": one}).classes == ("0", "1")
    for field, value, words in (
        ("classes", ("0", "1", "2"), r"classes differ: 'a' and 'b'.*2; data\.classes"),
        ("shape", (32,), r"samples differ: those of 'a' are float32 \[64\], those of 'b' float32 \[32\]"),
        ("versions", ("polyfed 2",), r"versions differ: 'a' and 'b'.*polyfed 2"),
    ):
        with pytest.raises(DataError, match=words):
            schema.agreed({"a": one, "b": schema.replace(one, **{field: value})})


def test_a_node_that_claims_anothers_name_is_refused(folder):
    from flwr.app import ConfigRecord, RecordDict

    from polyfed.engine.flower.deploy.server import Sites

    server = layout.Server.at(folder)

    def node(number, key):
        return SimpleNamespace(node_id=number, public_key=key, last_activated_at="now")

    nodes = [node(7 + k, server.key_of(name)) for k, name in enumerate(SITES)]
    stranger = node(99, b"someone else's")
    grid = SimpleNamespace(get_nodes=lambda: [*nodes, stranger])
    sites = Sites(grid, server, folder / "server" / "runs" / "run-1", "counts")
    assert sites._connected() == {"a": 7, "b": 8, "c": 9}, "a key that is not registered is nobody"

    def reply(name):
        content = RecordDict({"who": ConfigRecord({"site": name})})
        return SimpleNamespace(has_error=lambda: False, content=content)

    assert sites._identified(8, reply("b"))[0] == "b"
    with pytest.raises(DataError, match="the key of site 'b' says that it is 'a'"):
        sites._identified(8, reply("a"))


def test_a_site_splits_its_samples_as_the_local_engine_does(folder, tmp_path):
    from polyfed.config import make_config
    from polyfed.engine.work import federation_of

    for name in SITES:
        shutil.copytree(folder / "sites" / name / "data", tmp_path / "together" / name)
    tree = {"data": {"name": "folder", "root": str(tmp_path / "together"), "classes": 10}}
    config = make_config(tree | {"split": {"partition": "users", "test": 0.3, "val": 0.1}})
    whole = federation_of(config)
    for k, name in enumerate(SITES):
        site = layout.Site.at(folder, name)
        own = schema.own_federation(config, schema.own_data(config, site), name, {"sites": list(SITES)})
        for part in ("train", "val", "test"):
            mine, theirs = getattr(own.clients[k], part), getattr(whole.clients[k], part)
            assert (mine.pool.x[mine.rows] == theirs.pool.x[theirs.rows]).all()
            assert (mine.y == theirs.y).all()
            assert not len(getattr(own.clients[(k + 1) % 3], part))


def test_a_site_scales_its_table_by_its_own_training_rows(folder, tmp_path):
    """And a simulation by all of them, as docs/deployment.md says; nobody is scaled by a row that becomes a test."""
    from polyfed.config import make_config
    from polyfed.engine.work import federation_of

    for k, name in enumerate(SITES):
        draw = np.random.default_rng(k)
        rows = [f"{draw.normal(100 * k, 5)},{draw.normal()},{at % 2}" for at in range(20)]
        for place in (folder / "sites" / name / "data", tmp_path / "together" / name):
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            (place / "visits.csv").write_text("\n".join(["age,dose,label", *rows]) + "\n")
    config = make_config({"data": {"name": "folder", "root": str(tmp_path / "together"), "normalise": True}})
    whole = federation_of(config)
    everybody = np.concatenate(whole.split.train)
    assert len(everybody) < len(whole.dataset.x)
    assert whole.dataset.mean == pytest.approx(whole.dataset.x[everybody].mean(0), rel=1e-5)
    for k, name in enumerate(SITES):
        order = {"sites": list(SITES), "run": "r"}
        found = schema.own_data(config, layout.Site.at(folder, name))
        assert schema.statistics(schema.agreed({name: schema.schema_of(found, "counts")})) == {}, "nothing is told"
        own = schema.own_federation(config, found, name, order)
        mine = own.dataset.x[own.split.train[k]]
        assert own.dataset.mean == pytest.approx(mine.mean(0), rel=1e-5)
        assert own.dataset.std == pytest.approx(mine.std(0), rel=1e-4)
        x, _ = own.clients[k].train.take(torch.arange(len(mine)))
        assert x.mean(0).abs().max() < 1e-4
        assert own.preparation.mean == own.dataset.mean, "new samples are scaled alike"


def test_pictures_and_tokens_are_not_normalised_twice(folder):
    from polyfed.config import make_config

    np.savez(folder / "sites" / "a" / "data" / "digits.npz", x=np.zeros((4, 2)), y=[0, 1, 0, 1])
    config = make_config({"data": {"name": "folder", "root": "x", "normalise": True, "tokens": True}})
    with pytest.raises(DataError, match=r"data.normalise is for numbers, and here are tokens"):
        schema.own_data(config, layout.Site.at(folder, "a"))


def test_a_site_tells_n_alone_if_it_or_the_server_says_so(folder):
    from polyfed.config import write_yaml
    from polyfed.engine.flower.deploy.client import introduce

    order = {"config": write_yaml(layout.FIRST_CONFIG), "sites": list(SITES), "disclose": "counts"}
    context = SimpleNamespace(node_config={"home": str(folder / "sites" / "a")})
    said = introduce(order, context)
    assert sum(said["counts"]) == said["n"]
    assert introduce(order | {"disclose": "n"}, context)["counts"] == []
    text = (folder / "sites" / "a" / "site.yaml").read_text()
    (folder / "sites" / "a" / "site.yaml").write_text(text.replace("disclose: counts\n", "disclose: n\n"))
    hidden = introduce(order, context)
    assert (hidden["counts"], hidden["n"]) == ([], said["n"])


@pytest.mark.parametrize("value", ["none", "", None, "N", ["n"], "count"])
def test_disclose_knows_its_values(folder, value):
    from polyfed.config import write_yaml
    from polyfed.engine.flower.deploy.client import introduce

    order = {"config": write_yaml(layout.FIRST_CONFIG), "sites": list(SITES), "disclose": value}
    context = SimpleNamespace(node_config={"home": str(folder / "sites" / "a")})
    with pytest.raises(UsageError, match="what the server asks for, disclose, is n or counts, not"):
        introduce(order, context)
    file = folder / "sites" / "a" / "site.yaml"
    file.write_text(write_yaml(read_yaml(file.read_text(), "site") | {"disclose": value}))
    with pytest.raises(UsageError, match=r"site\.yaml: disclose is n or counts, not"):
        introduce(order | {"disclose": "counts"}, context)


DP = {"name": "dp-sgd", "noise": 1.5}


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (None, "and the run has privacy=none"),
        ({"name": "user", "noise": 1.0}, "and the run has privacy=user"),
        ({"name": "dp-sgd", "epsilon": 9.0}, r"and the run has privacy\.epsilon=9"),
        ({**DP, "delta": 1e-3}, r"and the run has privacy\.delta=0\.001"),
        ({**DP, "reports": True}, r"privacy\.reports=true, which the site's settings do not allow"),
        ({**DP, "classes_known": True}, r"privacy\.classes_known=true, which the site's settings do not allow"),
    ],
)
def test_a_site_that_insists_on_privacy_does_nothing_without_it(folder, asked, sentence):
    from polyfed.engine.flower.deploy.client import introduce, work

    change(folder / "sites" / "a" / "site.yaml", privacy={"epsilon": 8})
    tree = layout.FIRST_CONFIG | {"method": {"name": "fedavg"}} | ({"privacy": asked} if asked else {})
    order = {"config": write_yaml(tree), "sites": list(SITES), "disclose": "counts"}
    context = SimpleNamespace(node_config={"home": str(folder / "sites" / "a")})
    for ask in (lambda: introduce(order, context), lambda: work(Job("train", 0, 1), order, context)):
        with pytest.raises(UsageError, match=rf"site 'a' insists on privacy=dp-sgd with epsilon=8, .*{sentence}"):
            ask()
    (folder / "sites" / "a" / "data" / "digits.npz").unlink()  # it was not even read
    with pytest.raises(UsageError, match="insists"):
        introduce(order, context)


def test_all_runs_together_spend_no_more_than_a_site_allows(folder, tmp_path):
    """Neither noise without an end nor a second run makes the server a second budget."""
    pytest.importorskip("opacus", reason="skipped: no opacus")
    from polyfed.engine.flower.deploy.client import work
    from polyfed.engine.flower.deploy.server import Elsewhere

    change(folder / "sites" / "a" / "site.yaml", privacy={"epsilon": 8, "delta": 1e-5})
    said, collect, _ = heard(folder, {"method": {"name": "fedavg"}, "privacy": DP})
    _, sites = collect()
    assert (said["a"]["counts"], said["a"]["disclosed"]) == ([], "n")
    sites.store, context = Elsewhere(tmp_path), SimpleNamespace(node_config={"home": str(folder / "sites" / "a")})
    config = make_config(read_yaml(sites.common["config"], "the run"))
    job = Job("train", 0, 1, Message(w=sites.world(config).resident.initial.flat.clone()))
    done = []

    def go_on() -> None:
        for number in range(60):
            done.append(work(job, {**sites.order(job), "run": f"run-{number % 2}"}, context))

    with pytest.raises(UsageError, match="budget spent: with one more round all runs would exceed epsilon=8"):
        go_on()
    assert len(done) > 2
    assert [outcome.error for outcome in done] == [""] * len(done)
    assert len(list((folder / "sites" / "a" / "memory").glob("*.privacy.json"))) == 2


@pytest.fixture
def hellos(folder):
    """What the sites say, and a crew that hears it and does nothing else."""
    return heard(folder, {})


def heard(folder, changes):
    """The same for a run with other keys."""
    from polyfed.config import make_config, write_yaml
    from polyfed.engine.flower.deploy.client import introduce
    from polyfed.engine.flower.deploy.server import Sites

    tree = layout.FIRST_CONFIG | {"data": {"name": "folder", "root": "data", "classes": 10}} | changes
    order = {"config": write_yaml(tree), "sites": list(SITES), "disclose": "counts"}
    said = {
        name: introduce(order, SimpleNamespace(node_config={"home": str(folder / "sites" / name)})) for name in SITES
    }
    run = folder / "server" / "runs" / "run-1"
    run.mkdir()
    config, log = make_config(tree), []

    def collect(**changes):
        sites = Sites(SimpleNamespace(), layout.Server.at(folder), run, "counts")
        sites._ask_for_hellos = lambda *_: {name: said[name] | changes.get(name, {}) for name in SITES}
        sites.collect_hellos(config, log.append)
        world = sites.world(config)
        classes, hellos = world.task.classes, list(sites.hello())
        return {SITES[o.client]: fault_of_hello(o, classes, world.origin_of(o.client)) for o in hellos}, sites

    return said, collect, log


@pytest.mark.parametrize(
    ("lie", "told"),
    [
        ({"n": "x"}, "n is 'x'"),
        ({"n": 10**15}, "n is 1000000000000000"),
        ({"levels": [1, 2, 3]}, "levels is"),
        ({"counts": "all"}, "counts is 'all'"),
        ({"counts": [1, 2]}, "the class counts of its train samples have shape"),
        ({"classes": [1, 2]}, "classes.0 is 1"),
        ({"shape": [-1]}, "shape.0 is -1"),
        ({"versions": "new"}, "versions is 'new'"),
        ({"password": "x"}, "password is 'x'"),
    ],
)
def test_a_site_whose_hello_cannot_be_true_is_found_and_the_others_go_on(hellos, lie, told):
    said, collect, _ = hellos
    faults, sites = collect(b=lie)
    assert faults["b"].startswith(told)
    assert (faults["a"], faults["c"]) == ("", "")
    assert sites.schema.classes == tuple(said["a"]["classes"])


def test_a_site_may_have_a_model_of_its_own_and_the_server_expects_it_there(folder, tmp_path):
    from polyfed.engine.flower.deploy.client import work
    from polyfed.engine.flower.deploy.server import Elsewhere

    own = {"name": "mlp", "width": 0.1, "per_client": {"b": {"name": "mlp", "width": 0.05}}}
    said, collect, _ = heard(folder, {"method": {"name": "local"}, "model": own})
    faults, sites = collect()
    assert faults == dict.fromkeys(SITES, "")
    assert said["a"]["params"] == said["c"]["params"] != said["b"]["params"]
    assert collect(b={"params": said["a"]["params"]})[0]["b"].startswith("it starts from another model")
    sites.store = Elsewhere(tmp_path)
    for client, name in enumerate(SITES):
        context, job = SimpleNamespace(node_config={"home": str(folder / "sites" / name)}), Job("train", client, 1)
        outcome = work(job, dict(sites.order(job)), context)
        assert outcome.error == ""
        assert outcome.digest
    with pytest.raises(DataError, match="site 'c' builds another model than the server"):
        work(job, {**sites.order(job), **sites.origins[1]}, context)


def test_what_a_site_said_of_its_data_at_first_holds(hellos):
    said, collect, log = hellos
    collect()
    _, sites = collect(c={"n": said["c"]["n"] * 1000})
    assert sites.said["c"]["n"] == said["c"]["n"]
    assert log == ["site 'c' tells otherwise of its n than at first; what it told at first holds"]


def test_the_record_says_what_each_site_disclosed(hellos, tmp_path):
    from polyfed.measure.recorder import Recorder

    _, collect, log = hellos
    hidden = {"counts": [], "test_counts": [], "val_counts": [], "levels": [], "disclosed": "n"}
    _, sites = collect(a=hidden)
    assert "class counts are not told" in log[0]
    known = [known_of(outcome) for outcome in sites.hello()]
    Recorder(tmp_path, {}, {}).federation(known, SimpleNamespace(class_names=(), heldout=()))
    rows = json.loads((tmp_path / "federation.json").read_text())["clients"]
    assert [(row["name"], row["disclosed"]) for row in rows] == [("a", "n"), ("b", "counts"), ("c", "counts")]


def test_secure_aggregation_is_refused_and_so_is_a_server_that_is_not_there(folder, cli):
    assert "only for its legacy fit API" in cli("deploy", "run", str(folder), "engine.secagg=true").err
    said = cli("deploy", "run", str(folder))
    assert said.code == 4
    assert "nobody listens" in said.err
    with pytest.raises(UsageError, match="disclose"):
        control.begin(layout.Server.at(folder), {"deploy": {"disclose": "everything"}})


JOB = """
import time
from polyfed.engine.flower.deploy import client
client._end_with_superexec()
print(flush=True)
time.sleep(300)
"""
SUPEREXEC = """
import os, subprocess, sys
job = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
job.stdout.readline()
print(job.pid, flush=True)
os._exit(0)
"""


def test_a_job_ends_with_the_superexec_that_started_it():
    said = subprocess.run([sys.executable, "-c", SUPEREXEC, JOB], capture_output=True, text=True, timeout=120)
    assert wait_for(lambda: not processes.alive(int(said.stdout)), 20, 0.1), "it goes on though nobody wants it"


# ---- with processes


@pytest.mark.slow
def test_map_between_sites_has_the_local_engines_bits_and_each_model_stays_at_home(federation, tmp_path, cli):
    code, summary, err = federation.done(federation.deploy("run"))
    assert code == 0, err
    local = federation.locally(tmp_path / "local")
    assert summary["fingerprint"] == local.fingerprint
    assert summary["personal"] == local["personal"]
    assert summary["bytes"] == local["bytes"]
    assert summary["failed"] == {}
    _stays_at_home(federation)
    site = federation.path / "sites" / "b"
    np.save(tmp_path / "x.npy", np.load(site / "data" / "digits.npz")["x"][:5])
    said = cli("predict", str(site), "--input", str(tmp_path / "x.npy"))
    assert len(said.out.splitlines()) == 6, said.err
    expected = local.client(1).predict(np.load(tmp_path / "x.npy"))
    assert [int(line.split(",")[1]) for line in said.out.splitlines()[1:]] == expected.tolist()
    status = json.loads(cli("deploy", "status", str(federation.path), "--json").out)
    assert (status["online"], status["run"]["state"], status["run"]["round"]) == (3, "finished", 2)


@pytest.mark.slow
def test_tables_of_tokens_at_the_sites_have_the_local_engines_bits(federation, tmp_path, cli):
    """CSV files whose columns are token ids, a text model and personal adapters; sites are given another folder."""
    for k, name in enumerate(SITES):
        draw = np.random.default_rng(k)
        x = draw.integers(1, 20, (30, 5))
        rows = [",".join(map(str, [*each, int((each < 10).sum() > 2) ^ k % 2])) for each in x]
        for place in (federation.path / "texts" / name, tmp_path / "together" / name):
            place.mkdir(parents=True)
            (place / "texts.csv").write_text("\n".join(["a,b,c,d,e,label", *rows]) + "\n")
        change(federation.path / "sites" / name / "site.yaml", data=str(federation.path / "texts" / name))
    text = {"model.name": "text-transformer", "model.ids": 20, "model.width": 0.25, "model.lora.rank": 2}
    keys = {"data.tokens": True, "data.classes": 2, "method.name": "fedlora", "rounds": 1, **text}
    try:
        code, summary, err = federation.done(federation.deploy("run", *(f"{k}={v}" for k, v in keys.items())))
    finally:
        for name in SITES:
            change(federation.path / "sites" / name / "site.yaml", data="data")
    assert code == 0, err
    local = federation.locally(tmp_path / "local", **keys | {"data.root": str(tmp_path / "together")})
    assert summary["fingerprint"] == local.fingerprint
    assert summary["personal"] == local["personal"]
    assert summary["bytes"] == local["bytes"]
    assert summary["failed"] == {}


@pytest.mark.slow
def test_tables_of_words_and_gaps_at_the_sites_have_the_local_engines_bits(federation, tmp_path, cli):
    """Every site has its own visits.csv; a simulation reads one table with all rows and their clients."""
    together = ["colour,age,dose,label,client"]
    for k, name in enumerate(SITES):
        draw = np.random.default_rng(k)
        colours = draw.choice(["red", "blue", "pink"], 30)
        rows = [
            f"{c},{'' if at % 7 == 3 else at + k},{draw.normal():.3f},{c == 'red':d}" for at, c in enumerate(colours)
        ]
        together += [f"{row},{name}" for row in rows]
        (federation.path / "visits" / name).mkdir(parents=True)
        (federation.path / "visits" / name / "visits.csv").write_text(
            "\n".join(["colour,age,dose,label", *rows]) + "\n"
        )
        change(federation.path / "sites" / name / "site.yaml", data=str(federation.path / "visits" / name))
    (tmp_path / "visits.csv").write_text("\n".join(together) + "\n")
    (tmp_path / "new.csv").write_text("dose,colour,age\n0.5,red,30\n0.1,green,40\n")
    keys = {"data.name": "manifest", "data.missing": "mean", "data.classes": 2, "model.name": "table-mlp", "rounds": 1}
    words = [f"{key}={value}" for key, value in keys.items()] + [
        "method.name=ditto",
        "data.categories.colour=[red, blue]",
    ]
    try:
        code, summary, err = federation.done(federation.deploy("run", *words, "data.file=visits.csv"))
        assert code == 0, err
        said = cli("predict", str(federation.path / "sites" / "b"), "--input", str(tmp_path / "new.csv"))
    finally:
        for name in SITES:
            change(federation.path / "sites" / name / "site.yaml", data="data")
    table = {"data.categories": {"colour": ["red", "blue"]}, "data.file": str(tmp_path / "visits.csv")}
    local = federation.locally(tmp_path / "local", **keys, **table, **{"method.name": "ditto"})
    assert summary["fingerprint"] == local.fingerprint
    assert summary["personal"] == local["personal"]
    assert summary["failed"] == {}
    assert "1 words in" in said.err
    expected = local.client(1).predict(np.array([[1, 30, 0.5], [0, 40, 0.1]], np.float32))
    assert [int(line.split(",")[1]) for line in said.out.splitlines()[1:]] == expected.tolist()


def _stays_at_home(federation: Federation) -> None:
    """No file of the server, and of no other site, holds a piece of a site's memory: nothing of it crossed the wire."""
    for name in SITES:
        home = federation.path / "sites" / name
        memory = Memory.decode((home / "model" / "memory.safetensors").read_bytes())
        tensor = next(t for t in memory.tensors().values() if t.is_floating_point() and len(t) > 100)
        piece = tensor[-40:].numpy().tobytes()
        elsewhere = [federation.path / "server", *(federation.path / "sites" / n for n in SITES if n != name)]
        for path in (p for folder in elsewhere for p in folder.rglob("*") if p.is_file()):
            assert piece not in path.read_bytes(), f"{path} holds a piece of the memory of site {name}"
        assert any(piece in p.read_bytes() for p in home.rglob("*") if p.is_file()), "the search finds what is there"


@pytest.mark.slow
def test_a_private_run_between_sites_tells_only_noise_and_what_one_site_lies_about_is_counted(federation, own):
    """Site b sends no numbers and c another shape, then c a very long update; whoever is left goes on."""
    pytest.importorskip("opacus", reason="skipped: no opacus")
    change(federation.path / "sites" / "a" / "site.yaml", privacy={"epsilon": 500})
    words = [f"method.name={own('Lying')}", "rounds=2", "privacy.name=dp-sgd", "privacy.noise=1", "engine.quorum=0.3"]
    code, summary, err = federation.done(federation.deploy("run", *words))
    change(federation.path / "sites" / "a" / "site.yaml", privacy=None)
    assert code == 0, err
    assert summary["rejected"] == {"nonfinite": 1, "shape": 1, "norm": 1}
    assert summary["failed"] == {}
    rows = list(csv.DictReader((federation.newest() / "training.csv").open()))
    accepted = {
        name: [row["round"] for row in rows if row["client"] == str(k) and row["status"] == "accepted"]
        for k, name in enumerate(SITES)
    }
    assert accepted == {"a": ["1", "2"], "b": ["2"], "c": []}
    assert {row["loss"] for row in rows} <= {"", "nan"}, "losses are kept at the sites"
    told = summary["privacy"]
    assert (told["kind"], told["noise"]) == ("dp-sgd", "secret noise, bits not reproducible")
    assert 0 < told["epsilon"] < 500
    assert "reports: losses and confusion counts" not in told["outside"]
    assert summary["personal"] is None or summary["personal"]["accuracy"] is None
    for name in SITES:  # each counted for itself, as the server did
        (account,) = (federation.path / "sites" / name / "memory").glob(f"{federation.newest().name}*.privacy.json")
        ((_, history),) = json.loads(account.read_text()).items()
        assert epsilon_of(history, 1e-5) <= told["epsilon"] + 1e-9


ATTACKS = (("POST", probes.CONTROL), ("POST", "/v1/control/start-run"), ("POST", probes.RUNTIME))
ATTACKS += (("POST", probes.REGISTER), ("POST", probes.ASKED), ("GET", "/docs"), ("GET", "/openapi.json"))


@pytest.mark.slow
def test_whoever_has_only_the_ca_gets_nowhere_from_another_address(federation, cli):
    """What once ran code on the server and on every site: control, runtime, documentation, registration."""
    server = layout.Server.at(federation.path)
    authority = server.path / "ca.crt"
    shown = keys.client_context(authority, federation.path / "sites" / "a" / "site.crt")
    guard = probes.Door(HOST, server.port, shown, source=HOST)
    link = probes.Door("127.0.0.1", server.link, keys.client_context(authority), source=HOST)
    for headers in ({}, probes.strangers_headers(), {"authorization": "Bearer none"}):
        assert [guard.ask(*attack, headers) for attack in ATTACKS] == [403] * len(ATTACKS)
        assert {link.ask(*attack, headers) for attack in ATTACKS} <= {401, 403}
    probes.prove_guard(guard)
    with pytest.raises(ConnectionRefusedError):
        probes.Door(HOST, server.link, None).ask("GET", "/docs")
    probes.prove_certificate_wanted(probes.Door(HOST, server.port, keys.client_context(authority), source=HOST))
    said = cli("deploy", "check", str(federation.path))
    assert said.code == 0, said.err
    for words in ("tried from outside", "site c: the guard", "site c: its SuperNode gives tasks only to its own"):
        assert words in said.out


STRANGER = """
import http.client, json, ssl, sys
context = ssl._create_unverified_context()
said = {}
for host, port, method, target in json.loads(sys.argv[1]):
    try:
        connection = http.client.HTTPSConnection(host, port, timeout=20, context=context)
        connection.request(method, target, b"", {"content-type": "application/protobuf"})
        answer = connection.getresponse().status
    except OSError as error:
        answer = type(error).__name__
    said[f"{port} {target}"] = answer
for path in json.loads(sys.argv[2]):
    try:
        said[path] = open(path, "rb").read().hex()
    except OSError as error:
        said[path] = type(error).__name__
print(json.dumps(said))
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="another user needs root and setpriv")
def test_another_user_of_the_machine_gets_nowhere(federation, tmp_path):
    server = layout.Server.at(federation.path)
    asks = [("127.0.0.1", server.link, *attack) for attack in ATTACKS]
    asks += [(HOST, server.port, *attack) for attack in ATTACKS]
    nodes = [layout.Site.at(federation.path, name).port for name in SITES]
    asks += [("127.0.0.1", port, "POST", probes.RUNTIME) for port in nodes]
    secret = ["server/control.token", "server/superexec.secret", "server/server.key", "server/flower/credentials.yaml"]
    secret += ["ca/ca.key", "ca/sign.key", "sites/a/key", "sites/a/superexec.secret", "sites/a/data/digits.npz"]
    files = [str(federation.path / name) for name in secret]
    line = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        shutil.which("python3", path="/usr/bin:/bin"),
    ]
    if line[-1] is None:
        pytest.skip("there is no python3 that another user may start")
    done = subprocess.run(
        [*line, "-I", "-c", STRANGER, json.dumps(asks), json.dumps(files)], capture_output=True, text=True
    )
    said = json.loads(done.stdout or "{}")
    assert len(said) == len(asks) + len(files), done.stderr
    for where, answer in said.items():
        if where in files:
            assert answer == "PermissionError", where
        elif where.startswith(str(server.port)):
            assert isinstance(answer, str), f"{where}: {answer} without a certificate"
        else:
            assert answer in (401, 403), f"{where}: {answer}"


FOREIGN = """
import os
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client, server = ClientApp(), ServerApp()
MARKS = {marks!r}
open(os.path.join(MARKS, "imported-" + str(os.getpid())), "w")


@client.query()
def query(message, context):
    open(os.path.join(MARKS, "ran-on-a-site"), "w")
    return Message(RecordDict(), reply_to=message)


@server.main()
def main(grid, context):
    nodes = list(grid.get_node_ids())
    messages = [Message(RecordDict(), dst_node_id=node, message_type="query") for node in nodes]
    replies = list(grid.send_and_receive(messages, timeout=120))
    with open(os.path.join(MARKS, "replies.tmp"), "w") as file:
        file.write(str([reply.has_error() and reply.error.code for reply in replies]))
    os.replace(os.path.join(MARKS, "replies.tmp"), os.path.join(MARKS, "replies"))
"""


@pytest.mark.slow
def test_a_site_refuses_an_app_that_was_not_signed_even_from_who_has_the_token(federation, tmp_path):
    server = layout.Server.at(federation.path)
    app, marks = tmp_path / "foreign", tmp_path / "marks"
    marks.mkdir()
    shutil.copytree(server.path / "app", app)
    for side in ("client", "server"):
        text = FOREIGN.replace("{marks!r}", repr(str(marks)))
        (app / "polyfed_app" / f"{side}_app.py").write_text(f"{text}\napp = {side}\n")
    processes.call(server, "run", str(app), "polyfed")
    assert wait_for((marks / "replies").exists, 150, 0.2), federation.log("server")[-2000:]
    from flwr.common.constant import ErrorCode

    assert (marks / "replies").read_text() == str([ErrorCode.INVALID_FAB] * 3)
    assert not (marks / "ran-on-a-site").exists()
    assert len(list(marks.glob("imported-*"))) == 1, "the server's own process alone imported it"
    for name in SITES:
        assert "could not be verified" in federation.log(name)


@pytest.mark.slow
def test_an_unregistered_node_and_a_foreign_ca_are_refused(federation, tmp_path, cli):
    cli("deploy", "init", str(tmp_path / "other"), "--sites", "a,b")
    stranger = tmp_path / "stranger"
    shutil.copytree(federation.path / "sites" / "a", stranger, ignore=shutil.ignore_patterns("running.json", "flower"))
    for name in ("key", "key.pub"):
        shutil.copy(tmp_path / "other" / "sites" / "a" / name, stranger / name)
    change(stranger / "site.yaml", port=free_ports(1))
    done = subprocess.run([stranger / "start.sh"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 3
    assert "refuses site 'a': its key is not registered" in done.stderr
    for name in ("ca.crt", "site.crt", "site.key"):
        shutil.copy(tmp_path / "other" / "sites" / "a" / name, stranger / name)
    done = subprocess.run([stranger / "start.sh"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 3
    assert "vouches for" in done.stderr


@pytest.mark.slow
def test_a_site_the_server_app_and_the_superlink_are_killed_and_training_finishes(federation, own, tmp_path):
    marker = tmp_path / "sleeps"
    method = [f"method.name={own('Failing')}", "method.who=1", "method.when=2", "rounds=3"]
    going = federation.deploy("run", *method, "method.how=sleep", f"method.marker={marker}")
    assert wait_for(marker.exists, 200, 0.1), federation.log("b")
    os.kill(federation.child("b", "supernode"), signal.SIGKILL)  # in the middle of round 2
    federation.processes["b"].wait(30)
    federation.start("b")
    run = federation.newest()
    assert wait_for(lambda: (run / "checkpoints" / "at-000002").exists(), 200, 0.1), (run / "log.txt").read_text()
    os.kill(_server_app(federation), signal.SIGKILL)
    code, _, err = federation.done(going)
    assert (code, "deploy resume" in err) == (4, True)

    going = federation.deploy("resume")
    assert wait_for(lambda: "resumed after round 2" in (run / "log.txt").read_text(), 200, 0.1)
    os.kill(federation.child("server", "superlink"), signal.SIGKILL)
    code, _, err = federation.done(going)
    assert code == 4, err
    federation.processes["server"].wait(30)
    federation.wait_for_server()
    assert wait_for(lambda: "SuperNode ID" in federation.log("b").rpartition("Starting Flower SuperNode")[2], 200, 0.5)
    code, summary, err = federation.done(federation.deploy("resume"))
    assert code == 0, err
    assert newest_times(federation, run) == [3, 2, 3], "no round counts twice"
    assert [2, 1] in [lost[:2] for lost in summary["lost"]]
    assert "round 2: client 1 failed" in (run / "log.txt").read_text()
    lost = federation.locally(tmp_path / "local", rounds=3, method={"name": own("Failing"), "who": 1, "when": 2})
    assert summary["fingerprint"] == lost.fingerprint, "rounds done again have the same bits"


def _server_app(federation: Federation) -> int:
    return json.loads((federation.path / "server" / "last.json").read_text())["pid"]


def newest_times(federation: Federation, run: Path) -> list[int]:
    """How often each site remembers to have taken part."""
    times = []
    for name in SITES:
        found = (federation.path / "sites" / name / "memory" / run.name).glob("*.safetensors")
        newest = max(found, key=lambda path: int(path.stem.split("-")[1]))
        times.append(Memory.decode(newest.read_bytes()).times)
    return times


@pytest.mark.slow
def test_a_model_of_over_100_megabytes_goes_through(federation):
    started = time.monotonic()
    words = ["method=fedavg", "model.width=10", "rounds=1", "participation=0.3"]
    code, summary, err = federation.done(federation.deploy("run", *words))
    assert code == 0, err
    assert summary["bytes"]["up"] > 100e6
    assert summary["failed"] == {}
    print(f"{summary['bytes']['up'] / 1e6:.0f} MB up in {time.monotonic() - started:.0f} s")


@pytest.mark.slow
def test_mask_folders_between_sites_killed_and_resumed_have_the_local_engines_bits(federation, tmp_path, cli):
    root = masked.folders(tmp_path / "masks", SITES)
    homes = {name: federation.path / "sites" / name for name in SITES}
    before = {name: (home / "site.yaml").read_text() for name, home in homes.items()}
    words = ["method.name=mupfl", "method.tau=1", "model.name=lraspp-small", "data.classes=3", "rounds=3"]
    try:
        for name, home in homes.items():
            change(home / "site.yaml", data=str(root / name))
        going = federation.deploy("run", *words)
        runs = federation.path / "server" / "runs"
        assert wait_for(lambda: any(map(_begun, runs.glob("run-*"))), 200, 0.1)
        os.kill(_server_app(federation), signal.SIGKILL)
        assert federation.done(going)[0] == 4
        code, summary, err = federation.done(federation.deploy("resume"))
        assert code == 0, err
        method = {"name": "mupfl", "tau": 1.0}
        keys = {"data.root": str(root), "data.classes": 3, "model.name": "lraspp-small", "rounds": 3}
        local = federation.locally(tmp_path / "local", method=method, **keys)
        assert summary["fingerprint"] == local.fingerprint
        assert summary["personal"] == local["personal"]
        assert summary["personal"]["miou"] is not None
        said = cli("predict", str(homes["b"]), "--input", str(root / "b" / "images"), "--out", str(tmp_path / "out"))
        assert said.code == 0, said.err
        assert len(list((tmp_path / "out").glob("*_overlay.png"))) == 6
    finally:
        for name, text in before.items():
            (homes[name] / "site.yaml").write_text(text)


def _begun(run: Path) -> bool:
    """Whether a run on masks has a checkpoint of its first round."""
    config = run / "config.yaml"
    return config.exists() and "lraspp" in config.read_text() and (run / "checkpoints" / "at-000001").exists()
