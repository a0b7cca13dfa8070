"""Whole runs of a deployed federation without its processes: what the sites hold, tell, spend and keep.

The server app's loop and the sites' app are the real ones, and so are the bytes between them; test_deploy.py shows the
same over TLS, between processes that are attacked and killed.
"""

import csv
import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import masked
import polyfed
from federations import change, make_samples
from polyfed.api import Result
from polyfed.engine.run_folder import RunFolder
from polyfed.threats.accountant import epsilon_of

if importlib.util.find_spec("flwr") is None:
    pytest.skip("flwr is not installed", allow_module_level=True)

import one_process
from polyfed.engine.flower.deploy.layout import Server

pytestmark = pytest.mark.extras

SITES = ("a", "b", "c")
WORDS = ["rounds=2", "model.width=0.1", "train.batch=16", "eval.every=9"]


class Federation:
    """Three sites on disk, and their data put together for the local engine."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch):
        self.path, self.together, self.monkeypatch = path, path.parent / "together", monkeypatch

    def give(self, name: str, file: str, content: bytes) -> None:
        """Put a file where a site has its data, and where the local engine looks for them."""
        for place in (self.path / "sites" / name / "data" / file, self.together / name / file):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)

    def run(self, **changes: Any) -> RunFolder:
        return one_process.run(self.path, changes, self.monkeypatch)

    def locally(self, **changes: Any) -> Result:
        """The same experiment on the local engine."""
        keys = {**changes, "data.root": str(self.together), "engine": {"name": "local", "workers": 0}}
        return polyfed.run(Server.at(self.path).config, keys, out=self.path.parent / "local")


@pytest.fixture
def federation(tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch) -> Federation:
    said = cli("deploy", "init", str(tmp_path / "f"), "--sites", ",".join(SITES), "--port", "9", *WORDS)
    assert said.code == 0, said.err
    return Federation(tmp_path / "f", monkeypatch)


def same(found: RunFolder, local: Result) -> None:
    """The bits and numbers of the local engine, and nobody failed."""
    summary = found.result()
    assert summary is not None
    assert summary["fingerprint"] == local.fingerprint
    for number in ("personal", "bytes"):
        assert summary[number] == local[number]
    assert summary["failed"] == {}


def test_tables_of_tokens_at_the_sites_have_the_local_engines_bits(federation: Federation) -> None:
    """CSV files whose columns are token ids, a text model and personal adapters."""
    for k, name in enumerate(SITES):
        x = np.random.default_rng(k).integers(1, 20, (30, 5))
        rows = [",".join(map(str, [*each, int((each < 10).sum() > 2) ^ k % 2])) for each in x]
        federation.give(name, "texts.csv", "\n".join(["a,b,c,d,e,label", *rows, ""]).encode())
    text = {"model.name": "text-transformer", "model.ids": 20, "model.width": 0.25, "model.lora.rank": 2}
    keys = {"data.tokens": True, "data.classes": 2, "method.name": "fedlora", "rounds": 1, **text}
    same(federation.run(**keys), federation.locally(**keys))


def test_tables_of_words_and_gaps_at_the_sites_have_the_local_engines_bits(
    federation: Federation, tmp_path: Path, cli: Any
) -> None:
    """Every site has its own visits.csv; a simulation reads one table with all rows and their clients."""
    together = ["colour,age,dose,label,client"]
    for k, name in enumerate(SITES):
        draw = np.random.default_rng(k)
        colours = draw.choice(["red", "blue", "pink"], 30)
        rows = [
            f"{c},{'' if at % 7 == 3 else at + k},{draw.normal():.3f},{c == 'red':d}" for at, c in enumerate(colours)
        ]
        together += [f"{row},{name}" for row in rows]
        federation.give(name, "visits.csv", "\n".join(["colour,age,dose,label", *rows, ""]).encode())
    (tmp_path / "visits.csv").write_text("\n".join([*together, ""]))
    (tmp_path / "new.csv").write_text("dose,colour,age\n0.5,red,30\n0.1,green,40\n")
    table = {"data.name": "manifest", "data.missing": "mean", "data.categories": {"colour": ["red", "blue"]}}
    keys = {**table, "data.classes": 2, "model.name": "table-mlp", "method.name": "ditto", "rounds": 1}
    found = federation.run(**keys, **{"data.file": "visits.csv"})
    local = federation.locally(**keys, **{"data.file": str(tmp_path / "visits.csv")})
    same(found, local)
    said = cli("predict", str(federation.path / "sites" / "b"), "--input", str(tmp_path / "new.csv"))
    assert "1 words in" in said.err
    expected = local.client(1).predict(np.array([[1, 30, 0.5], [0, 40, 0.1]], np.float32))
    assert [int(line.split(",")[1]) for line in said.out.splitlines()[1:]] == expected.tolist()


def test_mask_folders_at_the_sites_have_the_local_engines_bits_and_answer_with_overlays(
    federation: Federation, tmp_path: Path, cli: Any
) -> None:
    root = masked.folders(tmp_path / "masks", SITES)
    for file in (file for file in root.rglob("*") if file.is_file()):
        name, *rest = file.relative_to(root).parts
        federation.give(name, "/".join(rest), file.read_bytes())
    method = {"method.name": "mupfl", "method.tau": 1.0}
    keys = {**method, "model.name": "lraspp-small", "data.classes": masked.CLASSES}
    found = federation.run(**keys)
    same(found, federation.locally(**keys))
    summary = found.result()
    assert summary is not None
    assert summary["personal"]["miou"] is not None
    site = federation.path / "sites" / "b"
    said = cli("predict", str(site), "--input", str(site / "data" / "images"), "--out", str(tmp_path / "out"))
    assert said.code == 0, said.err
    assert len(list((tmp_path / "out").glob("*_overlay.png"))) == 6


def test_a_private_run_tells_only_noise_and_what_one_site_lies_about_is_counted(
    federation: Federation, own: Any
) -> None:
    """Site b sends no numbers and c another shape, then c a very long update; whoever is left goes on."""
    pytest.importorskip("opacus", reason="skipped: no opacus")
    for k, name in enumerate(SITES):
        site = federation.path / "sites" / name
        make_samples(site / "data", k)
        change(site / "site.yaml", allow=[own("Lying")], privacy={"epsilon": 500} if name == "a" else None)
    private = {"privacy.name": "dp-sgd", "privacy.noise": 1.0}
    found = federation.run(**{"method.name": own("Lying"), "data.classes": 10, "engine.quorum": 0.3, **private})
    summary = found.result()
    assert summary is not None
    assert summary["rejected"] == {"nonfinite": 1, "shape": 1, "norm": 1}
    assert summary["failed"] == {}
    rows = list(csv.DictReader((found.path / "training.csv").open()))
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
        (account,) = (federation.path / "sites" / name / "memory").glob(f"{found.path.name}*.privacy.json")
        ((_, history),) = json.loads(account.read_text()).items()
        assert epsilon_of(history, 1e-5) <= told["epsilon"] + 1e-9
