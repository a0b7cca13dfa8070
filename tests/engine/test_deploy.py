"""A real federation on loopback: a SuperLink, three SuperNodes, TLS, keys, kills, and a large model."""

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.datasets import load_digits

import polyfed
from killing import wait_for
from polyfed.errors import DataError, UsageError
from polyfed.message import Memory

if importlib.util.find_spec("flwr") is None:
    pytest.skip("flwr is not installed", allow_module_level=True)

from polyfed.engine.deploy import check, control, keys, layout, schema

SITES = ("a", "b", "c")
WORDS = ["rounds=2", "model.width=0.1", "train.batch=16", "eval.every=9", "engine.deadline=200", "data.classes=10"]


def make_samples(folder: Path, k: int) -> None:
    """Some digits, of some classes only."""
    digits = load_digits()
    rows = np.random.default_rng(k).permutation(len(digits.target))[:80]
    rows = rows[digits.target[rows] % 3 != k]
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "digits.npz", x=(digits.data[rows] / 16).astype("float32"), y=digits.target[rows])


def free_ports(count: int) -> int:
    """The first of so many neighbouring free ports."""
    for first in range(21000 + os.getpid() % 900 * 10, 32000, 10):
        with_all = []
        try:
            for port in range(first, first + count):
                with_all.append(socket.create_server(("127.0.0.1", port)))
            return first
        except OSError:
            continue
        finally:
            for each in with_all:
                each.close()
    raise RuntimeError("no free ports")


class Federation:
    """A federation of three sites with its processes."""

    def __init__(self, path: Path, cli):
        self.path, self.cli = path, cli
        self.processes: dict[str, subprocess.Popen] = {}
        said = cli("deploy", "init", str(path), "--sites", "c,a,b", "--port", str(free_ports(5)), *WORDS)
        assert said.code == 0, said.err
        for k, name in enumerate(SITES):
            make_samples(path / "sites" / name / "data", k)
            shutil.copytree(path / "sites" / name / "data", path / "together" / name)

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
        """The process of Flower's that a start script runs."""
        mine = self.processes[name].pid
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                except OSError:
                    continue
                if parent == mine and any(word.endswith(program.encode()) for word in words):
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
    made.wait_for_server()
    for name in SITES:
        made.start(name)
    yield made
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
    around = layout.around(folder)
    assert around["FLWR_TELEMETRY_ENABLED"] == around["RAY_USAGE_STATS_ENABLED"] == "0"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--sites", "a"], "at least two sites"),
        (["--sites", "a,a"], "different names"),
        (["--sites", "a,../b"], "letters, digits"),
        (["--sites", "a,b", "--insecure", "--host", "fl.example.org"], "--insecure is for this machine alone"),
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

    from polyfed.engine.deploy.server import Sites

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

    assert sites._introduced(8, reply("b"))[0] == "b"
    with pytest.raises(DataError, match="the key of site 'b' says that it is 'a'"):
        sites._introduced(8, reply("a"))


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


def test_a_site_tells_n_alone_if_it_or_the_server_says_so(folder):
    from polyfed.config import write_yaml
    from polyfed.engine.deploy.client import introduce

    order = {"config": write_yaml(layout.FIRST_CONFIG), "sites": list(SITES), "disclose": "counts"}
    context = SimpleNamespace(node_config={"home": str(folder / "sites" / "a")})
    said = introduce(order, context)
    assert sum(said["counts"]) == said["n"]
    assert introduce(order | {"disclose": "n"}, context)["counts"] == []
    text = (folder / "sites" / "a" / "site.yaml").read_text()
    (folder / "sites" / "a" / "site.yaml").write_text(text.replace("disclose: counts\n", "disclose: n\n"))
    hidden = introduce(order, context)
    assert (hidden["counts"], hidden["n"]) == ([], said["n"])


def test_secure_aggregation_is_refused_and_so_is_a_server_that_is_not_there(folder, cli):
    assert "only for its legacy fit API" in cli("deploy", "run", str(folder), "engine.secagg=true").err
    said = cli("deploy", "run", str(folder))
    assert said.code == 4
    assert "no SuperLink listens" in said.err
    with pytest.raises(UsageError, match="disclose"):
        control.begin(layout.Server.at(folder), {"deploy": {"disclose": "everything"}})


def test_the_pinned_flower_has_what_we_use():
    """A release that breaks the adapter fails here, with the name of what is gone."""
    import inspect

    import flwr
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict  # noqa: F401
    from flwr.clientapp import ClientApp
    from flwr.proto.node_pb2 import NodeInfo
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    assert flwr.__version__.startswith("1.41."), f"polyfed is tested with flwr 1.41, not {flwr.__version__}"
    for owner, names in (
        (Grid, ("get_nodes", "get_node_ids", "push_messages", "pull_messages")),
        (ClientApp, ("query", "train", "evaluate")),
        (ServerApp, ("main",)),
    ):
        for name in names:
            assert callable(getattr(owner, name, None)), f"flwr's {owner.__name__} has no '{name}' any more"
    wanted = ["server_app", "client_app", "num_supernodes", "backend_name", "backend_config"]
    assert list(inspect.signature(run_simulation).parameters)[:5] == wanted, "run_simulation takes other arguments"
    assert {"node_id", "public_key"} <= {f.name for f in NodeInfo.DESCRIPTOR.fields}, "nodes do not show their keys"
    for module, options in (
        ("flwr.superlink.cli.flower_superlink", ("--ssl-ca-certfile", "--enable-supernode-auth", "--database")),
        (
            "flwr.supernode.cli.flower_supernode",
            ("--auth-supernode-private-key", "--root-certificates"),
        ),
    ):
        source = inspect.getsource(importlib.import_module(module))
        for option in options:
            assert option in source, f"{module} does not know {option} any more"


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
def test_an_unregistered_node_and_a_foreign_ca_are_refused(federation, tmp_path, cli):
    cli("deploy", "init", str(tmp_path / "other"), "--sites", "a,b")
    stranger = tmp_path / "stranger"
    shutil.copytree(federation.path / "sites" / "a", stranger, ignore=shutil.ignore_patterns("running.json", "flower"))
    for name in ("key", "key.pub"):
        shutil.copy(tmp_path / "other" / "sites" / "a" / name, stranger / name)
    text = (stranger / "site.yaml").read_text()
    (stranger / "site.yaml").write_text(text.replace("port: ", "port: 1"))
    done = subprocess.run([stranger / "start.sh"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 3
    assert "refuses site 'a': its key is not registered" in done.stderr
    shutil.copy(tmp_path / "other" / "server" / "ca.crt", stranger / "ca.crt")
    done = subprocess.run([stranger / "start.sh"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 3
    assert "vouches for" in done.stderr


@pytest.mark.slow
def test_a_site_the_server_app_and_the_superlink_are_killed_and_training_finishes(federation, own, tmp_path):
    marker = tmp_path / "sleeps"
    method = [f"method.name={own('Failing')}", "method.who=1", "method.when=2", "rounds=3"]
    going = federation.deploy("run", *method, "method.how=sleep", f"method.marker={marker}")
    assert wait_for(marker.exists, 200, 0.1), federation.log("b")
    os.kill(federation.child("b", "flower-supernode"), signal.SIGKILL)  # in the middle of round 2
    federation.processes["b"].wait(30)
    federation.start("b")
    run = federation.newest()
    assert wait_for(lambda: (run / "checkpoints" / "at-000002").exists(), 200, 0.1), (run / "log.txt").read_text()
    os.kill(_server_app(federation), signal.SIGKILL)
    code, _, err = federation.done(going)
    assert (code, "deploy resume" in err) == (4, True)

    going = federation.deploy("resume")
    assert wait_for(lambda: "resumed after round 2" in (run / "log.txt").read_text(), 200, 0.1)
    os.kill(federation.child("server", "flower-superlink"), signal.SIGKILL)
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
