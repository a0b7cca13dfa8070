"""Wrong uses: each ends in one clear sentence and the right exit code, without a traceback."""

import contextlib
import errno
import hashlib
import json
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from polyfed.errors import DataError, UsageError, trouble

USAGE, DATA, FAILED = 2, 3, 4
Words = list[str]
Cli = Callable[..., Any]


def sentence_of(said: Any, code: int, fragment: str) -> str:
    """The one sentence on stderr, after everything that holds for every wrong use."""
    assert said.code == code, said
    assert said.out == ""
    assert "Traceback" not in said.err
    lines = said.err.splitlines()
    assert len(lines) == 1, said.err
    assert lines[0].startswith("polyfed: ")
    assert fragment in lines[0]
    return lines[0]


# ---- found before the config is valid: nothing is written

VALUES = [
    # unknown keys, at every level; the nearest one is named
    ("rouns=3", "unknown key 'rouns' for an experiment; did you mean 'rounds'?"),
    ("train.lrr=1", "unknown key 'train.lrr' for 'train'; did you mean 'lr'?"),
    ("eval.evry=1", "did you mean 'every'?"),
    ("checkpoint.kep=1", "did you mean 'keep'?"),
    ("split.alfa=2", "unknown key 'split.alfa' for partition 'dirichlet'; did you mean 'alpha'?"),
    ("split.clints=2", "did you mean 'clients'?"),
    ("split.partition=iid split.shards=2", "for partition 'iid'; it takes no key of its own, and every split takes cl"),
    ("split.partition=shards split.alpha=1", "unknown key 'split.alpha' for partition 'shards'; it takes shards, and"),
    ("split.partition=shards split.alpha=1", "public, seed, test, val; alpha belongs to dirichlet"),
    ("method=fedprox method.nu=1", "unknown key 'method.nu' for method 'fedprox'; did you mean 'mu'?"),
    ("method.mu=1", "unknown key 'method.mu' for method 'fedavg'"),
    ("method=fedavg-ft method.base=fedprox method.base.nu=1", "unknown key 'method.base.nu' for method 'fedprox'; did"),
    ("method=fedavg-ft method.base.mu=1", "unknown key 'method.base.mu' for method 'fedavg'"),
    ("model.widht=2", "unknown key 'model.widht' for model 'mlp'; did you mean 'width'?"),
    ("data.limt=2", "unknown key 'data.limt' for data 'digits'; did you mean 'limit'?"),
    ("engine.wokers=1", "unknown key 'engine.wokers' for engine 'local'; did you mean 'workers'?"),
    ("out=here", "unknown key 'out'"),
    # unknown names; the nearest one is named
    ("method=fedprx", "unknown method 'fedprx'; did you mean 'fedprox'?"),
    ("method=fedavg-ft method.base=fedprx", "unknown method 'fedprx'; did you mean 'fedprox'?"),
    ("model=resnt8", "unknown model 'resnt8'; did you mean 'resnet8'?"),
    ("data=digts", "unknown data 'digts'; did you mean 'digits'?"),
    ("split.partition=dirchlet", "unknown partition 'dirchlet'; did you mean 'dirichlet'?"),
    ("engine=locl", "unknown engine 'locl'; did you mean 'local'?"),
    ("data=zzzzzz", "unknown data 'zzzzzz'; valid: arrays,"),
    # values out of range
    ("split.alpha=0", "'split.alpha': input should be greater than 0 (got 0)"),
    ("split.alpha=-1", "'split.alpha'"),
    ("split.alpha=.nan", "'split.alpha': input should be a finite number (got nan)"),
    ("split.alpha=.inf", "'split.alpha'"),
    ("split.clients=0", "'split.clients'"),
    ("split.longtail=0.5", "'split.longtail': input should be greater than or equal to 1 (got 0.5)"),
    ("split.test=1.5", "'split.test': input should be 'mirror' or 'none', or less than 1 (got 1.5)"),
    ("split.test=0.6 split.val=0.4", "split.test and split.val together leave nothing to train on"),
    ("split.heldout=4", "split.heldout=4 leaves none of the 4 clients to train"),
    ("split.heldout=-1", "'split.heldout'"),
    ("split.public=-1", "'split.public'"),
    ("rounds=-1", "'rounds': input should be greater than or equal to 1 (got -1)"),
    ("rounds=0", "'rounds'"),
    ("rounds=2.5", "'rounds'"),
    ("rounds=many", "'rounds': input should be a valid integer"),
    ("rounds=true", "'rounds': input should be a number (got True)"),
    ("method=fedprox method.mu=true", "'method.mu': input should be a number (got True)"),
    ("participation=0", "'participation'"),
    ("participation=1.1", "'participation'"),
    ("sampling=often", "'sampling': input should be 'fixed' or 'bernoulli'"),
    ("train.batch=0", "'train.batch'"),
    ("train.lr=-1", "'train.lr'"),
    ("train.lr=0", "'train.lr'"),
    ("train.lr=fast", "'train.lr': input should be a valid number"),
    ("train.lr=", "'train.lr': input should be a valid number (got None)"),
    ("train.momentum=1", "'train.momentum'"),
    ("train.nesterov=true", "train.nesterov needs train.momentum above 0"),
    (
        "train.schedule=nonsense",
        "'train.schedule': a schedule is constant, cosine, {round: lr, ...} or [factor, rounds",
    ),
    ("train.schedule=[0.9]", "'train.schedule': a schedule is"),
    ("train.schedule=[0.9,0]", "'train.schedule': a schedule [factor, rounds] needs"),
    ("train.schedule={0: 0.1}", "'train.schedule': a schedule by round maps rounds from 1 on"),
    ("train.clip=0", "'train.clip'"),
    ("eval.every=0", "'eval.every'"),
    ("eval.clients=0", "'eval.clients': give at least 1 client or 'all' (got 0)"),
    ("eval.clients=some", "'eval.clients'"),
    ("weighting=size", "'weighting': input should be 'sample' or 'uniform' (got 'size')"),
    ("buffers=mine", "'buffers': input should be 'shared' or 'local' (got 'mine')"),
    ("device=tpu", "'device': device is auto, cpu, mps, cuda or cuda:N (got 'tpu')"),
    ("device=cuda:99", "'device': this machine has no such device"),
    ("seed=-1", "'seed'"),
    ("engine.workers=-1", "'engine.workers'"),
    ("engine.quorum=2", "'engine.quorum'"),
    ("engine.server_threads=100000", "'engine.server_threads': input should be less than or equal to 256"),
    # numbers no machine can hold
    (f"seed={'9' * 5000}", "the value of 'seed' holds a value that cannot be read: Exceeds the limit"),
    (f"seed={'9' * 4000}", "'seed': input should be a number of at most 18 digits (got 999"),
    (f"rounds={'9' * 30}", "'rounds': input should be a number of at most 18 digits"),
    (f"train.lr={'9' * 400}", "'train.lr'"),
    ("model.width=1e400", "'model.width': input should be a finite number (got inf)"),
    ("engine.deadline=0", "'engine.deadline'"),
    ("checkpoint.keep=0", "'checkpoint.keep'"),
    ("gate.norm=0", "'gate.norm'"),
    ("faults.dropout=1", "'faults.dropout'"),
    ("data.size=0", "'data.size': expected a whole number from 1 on or 'auto', or a height and a width [H, W] (got 0)"),
    ("data=folder", "'data.root' must be given for data 'folder'"),
    # not a section, not a name
    ("train=5", "'train' must hold keys and values of its own (got 5)"),
    ("split=iid", "'split' must hold keys and values of its own (got 'iid')"),
    ("split.partition=5", "a partition is chosen by its name, not by 5"),
    ("method=", "'method' must be a name or a mapping, not None"),
    # not key=value
    ("rounds", "'rounds' is neither key=value nor a config file"),
    ("=5", "'=5' is not key=value, for example train.lr=0.1"),
    ("train..lr=5", "'train..lr=5' is not key=value"),
    ("seed=1 seed=2", "'seed' is given twice, as seed=1 and as seed=2; say which one holds"),
    ("train.lr=[1", "the value of 'train.lr' is not valid YAML"),
    ("train.lr=!!python/name:os.system", "the value of 'train.lr' is not valid YAML"),
    ("one.yaml two.yaml", "one config file at most, not 2: one.yaml, two.yaml"),
    ("nosuch.yaml", "cannot read config file 'nosuch.yaml': No such file or directory"),
    # a method by import path
    ("method=nosuch.py:Mine", "cannot import method 'nosuch.py:Mine': FileNotFoundError: no file"),
    ("method=nosuchmodule:Mine", "cannot import method 'nosuchmodule:Mine': ModuleNotFoundError"),
    ("method=polyfed.methods:Nothing", "cannot import method 'polyfed.methods:Nothing': AttributeError"),
    ("method=torch.nn:Linear", "method 'torch.nn:Linear' is not a subclass of Method"),
]


def words_of(text: str) -> Words:
    """Words of a command line; a mapping as a value may hold a space."""
    return text.replace(": ", ":~").replace(", ", ",~").split(" ") if "{" in text else text.split(" ")


@pytest.mark.parametrize(("wrong", "fragment"), VALUES, ids=[wrong for wrong, _ in VALUES])
def test_key_or_value(
    wrong: str, fragment: str, cli: Cli, tiny_words: Words, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(runs.parent)
    said = cli("run", *tiny_words, *(word.replace("~", " ") for word in words_of(wrong)))
    sentence_of(said, USAGE, fragment)
    assert not runs.exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_device_that_is_not_there(cli: Cli, tiny_words: Words, runs: Path) -> None:
    sentence_of(cli("run", *tiny_words, "device=cuda"), USAGE, "'device': this machine has no such device")
    assert not runs.exists()


# nine lines that stand for a billion values: aliases of aliases, and merges of merges
ALIASES = b"a: &a [1,1,1,1,1,1,1,1,1,1]\n" + b"".join(
    b"%c: &%c [%s]\n" % (name, name, b",".join([b"*%c" % (name - 1)] * 10)) for name in b"bcdefghi"
)
MERGES = b"a: &a {x: 1}\n" + b"".join(
    b"%c: &%c {<<: [%s]}\n" % (name, name, b",".join([b"*%c" % (name - 1)] * 10)) for name in b"bcdefghi"
)

FILES = [
    (b"train:\n\tlr: 1\n", "is not valid YAML at line 2: found character '\\t'"),
    (b"method: !!python/object/apply:os.system ['exit 1']\n", "is not valid YAML at line 1: could not determine a c"),
    (b"- rounds\n- 3\n", "must hold keys and values, but it holds a list"),
    (b"rounds: 1\nrounds: 2\n", "the key 'rounds' is given twice"),
    (b"train: {lr: 1, lr: 2}\n", "the key 'lr' is given twice"),
    ("data: café\n".encode("latin-1"), "it is not UTF-8 text"),
    (b"rounds: \x00\n", "is not valid YAML: unacceptable character"),
    (b"", "must hold keys and values, but it is empty"),
    (b"5: 3\n", "has the key 5, which is not a word"),
    (b"model: {5: 3}\n", "'model' has the key 5, which is not a word"),
    (b"split: {5: 3}\n", "'split' has the key 5, which is not a word"),
    (b"train: {5: 3}\n", "'train.5'"),
    (b"train: &again {lr: *again}\n", "holds a part that contains itself"),
    (b"rounds: " + b"[" * 2000 + b"\n", "is nested too deeply"),
    (b"rounds: 1\n---\nrounds: 2\n", "but found another document"),
    (b"train: {lr: 1\n", "is not valid YAML at line"),
    (b"train: {lr: fast}\n", "'train.lr': input should be a valid number"),
    (b"seed: " + b"9" * 5000 + b"\n", "holds a value that cannot be read: Exceeds the limit"),
    (b"? {a: 1}\n: 2\n", "is not valid YAML at line 1: found unhashable key"),
    (ALIASES, "is not valid YAML: it holds more than 100000 values"),
    (MERGES, "is not valid YAML: it holds more than 100000 values"),
    (b"a: [" + b"1, " * 400_000 + b"]\n", "is longer than 500000 characters"),
    (b"methods: [fedavg]\n", "unknown key 'methods' for an experiment; did you mean 'method'?"),
]


@pytest.mark.parametrize(("content", "fragment"), FILES, ids=[fragment[:40] for _, fragment in FILES])
def test_config_file(content: bytes, fragment: str, cli: Cli, tiny_words: Words, tmp_path: Path, runs: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_bytes(content)
    sentence_of(cli("run", str(file), *tiny_words), USAGE, fragment)
    assert not runs.exists()


def test_directory_as_config(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    sentence_of(cli("run", str(tmp_path / "folder.yaml")), USAGE, "Is a directory")
    (tmp_path / "folder").mkdir()
    sentence_of(cli("run", str(tmp_path / "folder")), USAGE, "is neither key=value nor a config file")


NUMBERS = f"[{','.join(map(str, range(1, 1001)))}]"
HUGE = f"methods=[fedavg] seeds=3 rounds={NUMBERS} train.lr={NUMBERS} train.batch={NUMBERS} split.alpha={NUMBERS}"
COMPARISONS = [
    ("", "a comparison needs methods=..., for example methods=fedavg,fedprox"),
    ("methods=[]", "a comparison needs methods=..."),
    ("methods=5", "a comparison needs methods=..., for example methods=fedavg,fedprox (got 5)"),
    ("methods=[[fedavg]]", "methods must be a list of names"),
    ("methods=[fedavg,fedavg]", "method 'fedavg' is in the comparison twice"),
    ("methods=[fedavg,fedprx]", "unknown method 'fedprx'; did you mean 'fedprox'?"),
    ("methods=[fedavg] seeds=0", "seeds must be a number of seeds from 1 on or a list of different seeds (got 0)"),
    ("methods=[fedavg] seeds=[1,1]", "seeds must be"),
    ("methods=[fedavg] seeds=[]", "seeds must be"),
    ("methods=[fedavg] seeds=[-1]", "seeds must be"),
    ("methods=[fedavg] seeds=some", "seeds must be"),
    ("methods=[fedavg] method=fedprox", "'method' has no place in a comparison; give methods=..."),
    ("methods=[fedavg] seed=4", "'seed' has no place in a comparison; give seeds=..."),
    ("methods=[fedavg] out=here", "unknown key 'out'"),
    ("methods=[fedavg] fedprox.mu=1", "unknown key 'fedprox'"),
    (
        "methods=[fedavg,fedprox] fedprox.nu=1",
        "unknown key 'fedprox.nu' for method 'fedprox' and for an experiment; did y",
    ),
    ("methods=[fedavg,fedprox] fedprox=1", "'fedprox' must hold the method's parameters, for example fedprox.key=valu"),
    (
        "methods=fedavg,fedprox --columns personal,tial",
        "there is no column 'tial'; there are global, personal, head, m",
    ),
    ("methods=fedavg methods=fedprox", "'methods' is given twice, as methods=fedavg and as methods=fedprox;"),
    ("methods=[fedavg,fedprox] rouns=1", "did you mean 'rounds'?"),
    # counted before they are built
    ("methods=[fedavg] seeds=1000000000000", "a comparison has at most 10000 cells, this one would have 1000000000000"),
    (HUGE, "a comparison has at most 10000 cells, this one would have 3000000000000"),
    (f"methods=[fedprox] fedprox.mu={NUMBERS} seeds=100", "a comparison has at most 10000 cells, this one would have"),
    (f"methods=[fedavg] train.lr=[{','.join(map(str, range(1, 2000)))}]", "'train.lr' has 1999 values; an axis has at"),
]


@pytest.mark.parametrize(("wrong", "fragment"), COMPARISONS, ids=[wrong for wrong, _ in COMPARISONS])
def test_comparison(wrong: str, fragment: str, cli: Cli, tiny_words: Words, runs: Path) -> None:
    """All cells are checked before the first one runs."""
    sentence_of(cli("compare", *tiny_words, *wrong.split()), USAGE, fragment)
    assert not runs.exists()


COMMANDS = [
    ("comapre", "No such command 'comapre'. Did you mean 'compare'?"),
    ("run --qiet", "No such option '--qiet'. Did you mean '--quiet'?"),
    ("--json run", "No such option '--json'"),
    ("run --out", "Option '--out' requires an argument"),
    ("resume", "Missing argument 'RUN'"),
    ("show one two", "Got unexpected extra argument"),
    ("resume here --workers many", "Invalid value for '--workers'"),
    ("resume here --workers -1", "--workers must be 0 or more"),
    ("methods fedprx", "unknown method 'fedprx'; did you mean 'fedprox'?"),
    ("data digts", "unknown data 'digts'; did you mean 'digits'?"),
    ("data get", "say `polyfed data`, `polyfed data NAME` or `polyfed data get NAME`"),
    ("data get nonsense", "unknown data 'nonsense'"),
    ("data get digits", "there is nothing to get for 'digits'; downloads exist for: mnist,"),
    ("split split.alfa=1", "did you mean 'alpha'?"),
    ("split split.clients=2000", "split.clients=2000 is more than there are samples"),
]


@pytest.mark.parametrize(("wrong", "fragment"), COMMANDS, ids=[wrong for wrong, _ in COMMANDS])
def test_command(wrong: str, fragment: str, cli: Cli, runs: Path) -> None:
    sentence_of(cli(*wrong.split()), USAGE, fragment)
    assert not runs.exists()


METHOD_FILES = [
    ("raise ValueError('boom')\n", "cannot import method '{}': ValueError: boom"),
    ("def f(:\n", "cannot import method '{}': SyntaxError"),
    ("class Mine: pass\n", "method '{}' is not a subclass of Method"),
    ("Mine = 5\n", "method '{}' is not a subclass of Method"),
    ("class Yours: pass\n", "cannot import method '{}': AttributeError"),
]


@pytest.mark.parametrize(("source", "fragment"), METHOD_FILES, ids=[fragment for _, fragment in METHOD_FILES])
def test_method_file(source: str, fragment: str, cli: Cli, tiny_words: Words, tmp_path: Path, runs: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(source)
    path = f"{file}:Mine"
    for _ in range(2):  # a file that failed once says the same when it is tried again
        sentence_of(cli("run", *tiny_words, f"method={path}"), USAGE, fragment.format(path))
    assert not runs.exists()


# ---- found when the config is valid and the data are looked at: nothing is written either


INFEASIBLE = [
    ("data.limit=1 split.clients=11", "split.clients=11 is more than there are samples: at most 10 clients"),
    ("split.partition=shards split.shards=500", "at most 50 shards per client are possible"),
    ("split.partition=incomplete split.classes=11", "split.classes=11 is more than the 10 classes there are"),
    ("split.partition=groups split.groups=5", "split.groups=5 needs at least as many classes and clients"),
    ("split.partition=users", "split.partition=users needs data whose samples have users"),
    ("split.min=51", "split.min=51"),
    ("model.width=1e9", "model 'mlp' needs more than can be counted of memory"),
    ("model.width=1000", "model 'mlp' needs 4"),
    ("model=har-cnn", "model 'har-cnn' needs sequences (channels, time)"),
    ("model=torch.nn:Linear", "model 'torch.nn:Linear' could not be made"),
]


@pytest.mark.parametrize(("wrong", "fragment"), INFEASIBLE, ids=[wrong for wrong, _ in INFEASIBLE])
def test_infeasible(wrong: str, fragment: str, cli: Cli, tiny_words: Words, runs: Path) -> None:
    words = [w for w in tiny_words if not ("model=" in wrong and w.startswith("model."))]
    sentence_of(cli("run", *words, *wrong.split(), "--quiet"), USAGE, fragment)
    assert not runs.exists()


def npz_folder(tmp_path: Path, content: bytes | None = None) -> Path:
    """A folder source with one client: vectors of three numbers, or a file of these bytes."""
    (tmp_path / "clients" / "anna").mkdir(parents=True)
    file = tmp_path / "clients" / "anna" / "all.npz"
    if content is None:
        np.savez(file, x=np.zeros((40, 3), np.float32), y=np.arange(40) % 2)
    else:
        file.write_bytes(content)
    return tmp_path / "clients"


def test_size_of_what_are_no_images(cli: Cli, tiny_words: Words, tmp_path: Path) -> None:
    root = npz_folder(tmp_path)
    said = cli("run", *tiny_words, "data=folder", "split.partition=iid", f"data.root={root}", "data.size=16", "--quiet")
    sentence_of(said, USAGE, "data.size=16 is for images, and folder holds none")


def test_missing_data(cli: Cli, tiny_words: Words, tmp_path: Path, runs: Path) -> None:
    (tmp_path / "empty").mkdir()
    said = cli("run", *tiny_words, "data=mnist", f"data.root={tmp_path / 'empty'}", "--quiet")
    sentence_of(said, DATA, "is missing; `polyfed data get mnist` brings it")
    assert not runs.exists()


def test_a_root_that_does_not_exist(cli: Cli, tmp_path: Path, runs: Path) -> None:
    said = cli("run", "data=folder", f"data.root={tmp_path / 'nope'}", "--quiet")
    sentence_of(said, DATA, "nope does not exist; it must hold one sub-folder per client")
    said = cli("run", f"data={tmp_path / 'nope.csv'}", "--quiet")
    sentence_of(said, DATA, "nope.csv does not exist")
    assert not runs.exists()


def test_labels_that_are_numbers_of_patients(cli: Cli, tmp_path: Path, runs: Path) -> None:
    rows = [f"{at},{at * 20_000}" for at in range(51)]
    (tmp_path / "visits.csv").write_text("\n".join(["dose,label", *rows]))
    said = cli("run", f"data={tmp_path / 'visits.csv'}", "--quiet")
    sentence_of(said, DATA, "labels up to 1000000 make 1000001 classes of 51 samples, and 51 of them occur: renumber")
    assert not runs.exists()


def test_empty_folder(cli: Cli, tiny_words: Words, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    said = cli("split", "data=folder", f"data.root={tmp_path / 'empty'}")
    sentence_of(said, DATA, "must hold one sub-folder per client; there are none")


def test_corrupt_npz(cli: Cli, tiny_words: Words, tmp_path: Path) -> None:
    root = npz_folder(tmp_path, b"PK\x03\x04 and then nothing of the kind")
    said = cli("run", *tiny_words, "data=folder", f"data.root={root}", "--quiet")
    sentence_of(said, DATA, "is not a readable .npz file of plain numbers")


def test_labels_of_a_billion(cli: Cli, tiny_words: Words, tmp_path: Path) -> None:
    root = npz_folder(tmp_path)
    np.savez(root / "anna" / "all.npz", x=np.zeros((40, 3), np.float32), y=np.arange(40) % 2 * 10**9)
    said = cli("run", *tiny_words, "data=folder", f"data.root={root}", "--quiet")
    sentence_of(
        said, DATA, "folder: labels up to 1000000000 make 1000000001 classes of 40 samples, and 2 of them occur"
    )
    said = cli("run", *tiny_words, "data=folder", f"data.root={root}", "data.classes=2000000000", "--quiet")
    sentence_of(said, USAGE, "'data.classes': input should be less than or equal to 100000")


def test_tables_of_counts_that_do_not_fit(cli: Cli, tiny_words: Words, tmp_path: Path) -> None:
    root = npz_folder(tmp_path)
    words = ["data=folder", f"data.root={root}", "data.classes=100000", "split.partition=iid"]
    sentence_of(cli("run", *tiny_words, *words, "--quiet"), USAGE, "100000 classes need 400 GB for tables of counts")


@pytest.mark.parametrize("name", ["all.npz", "config.yaml", "rows.npy", "rows.csv", "init.safetensors"])
def test_a_pipe_is_not_waited_for(name: str, cli: Cli, tiny_words: Words, good_run: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "clients" / "anna" / name
    pipe.parent.mkdir(parents=True)
    os.mkfifo(pipe)
    commands = {
        "all.npz": ["split", "data=folder", f"data.root={tmp_path / 'clients'}"],
        "config.yaml": ["run", str(pipe)],
        "init.safetensors": ["run", *tiny_words, f"init={pipe}", "--quiet"],
    }
    said = cli(*commands.get(name, ["predict", str(good_run), "--global", "--input", str(pipe)]))
    sentence_of(said, DATA, "is not a plain file")


def test_arrays_of_another_process(cli: Cli, tiny_words: Words) -> None:
    said = cli("run", *tiny_words, "data=arrays", "data.key=abc", "--quiet")
    sentence_of(said, DATA, "the arrays of this run (abc) were given as Python objects; pass them again")


@pytest.mark.parametrize("wrong", ["split.clients=900", "data=mnist data.root=."])
def test_a_comparison_that_is_refused_leaves_nothing(
    wrong: str, cli: Cli, tiny_words: Words, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    said = cli("compare", *tiny_words, "methods=[fedavg,local]", *wrong.split(), "--out", str(tmp_path / "c"))
    assert said.code in (USAGE, DATA)
    sentence_of(said, said.code, "")
    assert not (tmp_path / "c").exists()


def test_a_comparison_runs_what_is_not_refused(cli: Cli, tiny_words: Words, tmp_path: Path) -> None:
    words = [word for word in tiny_words if not word.startswith("split.clients")]
    said = cli("compare", *words, "methods=[fedavg]", "seeds=1", "split.clients=[900,4]", "--out", str(tmp_path / "c"))
    assert said.code == FAILED
    assert "1 cells failed" in said.err
    assert (tmp_path / "c" / "fedavg-split.clients=4-s0" / "summary.json").is_file()


def test_phase_one_of_another_experiment(cli: Cli, tiny_words: Words, good_run: Path, runs: Path) -> None:
    words = [*tiny_words, "method=fedavg-ft", f"init={good_run}", "train.lr=0.5", "--quiet"]
    sentence_of(cli("run", *words), USAGE, "is not this phase one: train.lr (0.05, now 0.5) differ")
    assert not runs.exists()


def test_where_a_run_lies_is_looked_at_before_its_data(
    cli: Cli, good_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from polyfed.engine import rounds

    monkeypatch.setattr(rounds, "World", lambda config: pytest.fail("the data were read"))
    said = cli("run", "--out", str(good_run))
    sentence_of(said, USAGE, f"a run never overwrites: go on with polyfed resume {good_run}, or give another --out")


# ---- a run that failed before its first round was over is no run yet


class Merging:
    """Fails when a certain round is merged."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails_in: int):
        from polyfed.methods import Method

        real = Method.merge

        def merge(method: Any, server: Any, uploads: Any) -> None:
            if server.round == fails_in:
                raise MemoryError
            real(method, server, uploads)

        monkeypatch.setattr(Method, "merge", merge)


def test_the_same_command_again(cli: Cli, tiny_words: Words, good_run: Path, tmp_path: Path) -> None:
    """After a failure in the first round the same words, or others, just work there."""
    out = tmp_path / "r"
    with pytest.MonkeyPatch.context() as patch:
        Merging(patch, fails_in=1)
        sentence_of(cli("run", *tiny_words, "train.lr=0.5", "--quiet", "--out", str(out)), DATA, "too little memory")
    assert (out / "training.csv").exists()
    assert cli("run", *tiny_words, "--quiet", "--out", str(out)).code == 0
    made, good = (json.loads((run / "summary.json").read_text()) for run in (out, good_run))
    assert made["fingerprint"] == good["fingerprint"]
    assert (out / "training.csv").read_text().count("accepted") == 4  # and nothing of the first attempt
    assert (out / "log.txt").read_text().count("begins: ") == 2


def test_a_run_that_was_interrupted_in_its_first_round(cli: Cli, tiny_words: Words, tmp_path: Path) -> None:
    """Its checkpoint holds nothing that was learnt, so another experiment may begin there."""
    from polyfed.methods import Method

    out, real = tmp_path / "r", Method.train

    def train(method: Any, client: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return real(method, client)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Method, "train", train)
        said = cli("run", *tiny_words, "--quiet", "--out", str(out))
    sentence_of(said, 130, "interrupted after round 0; go on with: polyfed resume")
    assert (out / "checkpoints" / "at-000000").is_dir()
    assert cli("run", *tiny_words, "train.lr=0.5", "--quiet", "--out", str(out)).code == 0


def test_what_was_trained_is_never_overwritten(cli: Cli, tiny_words: Words, tmp_path: Path) -> None:
    """Even where no checkpoint was due yet, the records of a round stay."""
    words = [*tiny_words, "rounds=3", "checkpoint.every=9", "--quiet", "--out", str(tmp_path / "r")]
    with pytest.MonkeyPatch.context() as patch:
        Merging(patch, fails_in=2)
        sentence_of(cli("run", *words), DATA, "too little memory")
    before = {file: file.read_bytes() for file in (tmp_path / "r").rglob("*") if file.is_file()}
    sentence_of(cli("run", *words), USAGE, "exists and is not empty")
    assert {file: file.read_bytes() for file in (tmp_path / "r").rglob("*") if file.is_file()} == before
    assert cli("resume", str(tmp_path / "r"), "--quiet").code == 0


def test_a_run_in_its_first_round_is_in_use(cli: Cli, tiny_words: Words, tmp_path: Path) -> None:
    from polyfed.engine.run_folder import RunFolder

    out = tmp_path / "r"
    with pytest.MonkeyPatch.context() as patch:
        Merging(patch, fails_in=1)
        cli("run", *tiny_words, "train.lr=0.5", "--quiet", "--out", str(out))
    before = (out / "config.yaml").read_bytes()
    with RunFolder(out).locked():
        sentence_of(cli("run", *tiny_words, "--quiet", "--out", str(out)), DATA, "is in use by another process")
    assert (out / "config.yaml").read_bytes() == before


def test_a_run_that_another_process_began_anew(tiny: dict[str, Any], tmp_path: Path) -> None:
    from polyfed.api import config_of
    from polyfed.engine.local import Serial
    from polyfed.engine.rounds import Run
    from polyfed.engine.run_folder import RunFolder
    from polyfed.measure.watch import Silent

    first = Run(config := config_of(tiny), RunFolder.create(config, tmp_path / "r"), Serial(), Silent())
    RunFolder.create(config_of(tiny, seed=5), tmp_path / "r")
    with pytest.raises(DataError, match="was begun anew by another process"):
        first.go()


@pytest.mark.parametrize("name", ["thesis.txt", ".git", "summary.json", "arrays"])
def test_strangers_beside_the_start_of_a_run(name: str, cli: Cli, tiny_words: Words, tmp_path: Path) -> None:
    out = tmp_path / "r"
    with pytest.MonkeyPatch.context() as patch:
        Merging(patch, fails_in=1)
        cli("run", *tiny_words, "--quiet", "--out", str(out))
    (out / name).mkdir()
    sentence_of(cli("run", *tiny_words, "--quiet", "--out", str(out)), USAGE, "exists and is not empty")


def test_another_comparison_where_none_was_trained(cli: Cli, tiny_words: Words, tmp_path: Path) -> None:
    def words(rate: str) -> Words:
        return ["compare", *tiny_words, "methods=[fedavg]", "seeds=1", f"train.lr={rate}", "--out", str(tmp_path / "c")]

    with pytest.MonkeyPatch.context() as patch:
        Merging(patch, fails_in=1)
        assert cli(*words("0.5")).code == DATA
    assert cli(*words("0.1")).code == 0
    sentence_of(cli(*words("0.5")), USAGE, "holds another comparison (other train)")


# ---- where a run is written


def test_out_is_not_empty(cli: Cli, tiny_words: Words, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("precious")
    sentence_of(cli("run", *tiny_words, "--out", str(tmp_path / "full")), USAGE, "exists and is not empty")
    assert [file.name for file in (tmp_path / "full").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("command", ["run", "compare"])
def test_out_is_a_file(command: str, cli: Cli, tiny_words: Words, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    words = [*tiny_words, "methods=[fedavg]"] if command == "compare" else tiny_words
    sentence_of(cli(command, *words, "--out", str(tmp_path / "file")), USAGE, "exists and is not empty")
    assert (tmp_path / "file").read_text() == "precious"


def test_out_cannot_be_written(cli: Cli, tiny_words: Words, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    sentence_of(cli("run", *tiny_words, "--out", str(tmp_path / "file" / "run")), USAGE, "cannot write to")


def test_runs_cannot_be_written(cli: Cli, tiny_words: Words, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("POLYFED_OUT", str(tmp_path / "file" / "runs"))
    sentence_of(cli("run", *tiny_words), USAGE, "cannot write to")


# ---- runs that are missing, foreign or corrupt


@pytest.fixture(scope="module")
def good_run(tmp_path_factory: pytest.TempPathFactory, tiny: dict[str, Any]) -> Path:
    import polyfed

    return polyfed.run(tiny, out=tmp_path_factory.mktemp("good") / "run").path


@pytest.fixture
def run(good_run: Path, tmp_path: Path) -> Path:
    """A finished run of this test's own, to spoil."""
    return Path(shutil.copytree(good_run, tmp_path / "run"))


@pytest.mark.parametrize("command", ["resume", "show"])
class TestRun:
    def test_missing(self, command: str, cli: Cli, tmp_path: Path) -> None:
        sentence_of(cli(command, str(tmp_path / "nothing")), DATA, "there is no run at")
        assert not (tmp_path / "nothing").exists()

    def test_is_a_file(self, command: str, cli: Cli, run: Path) -> None:
        sentence_of(cli(command, str(run / "config.yaml")), DATA, "there is no run at")

    def test_foreign_directory(self, command: str, cli: Cli, tmp_path: Path) -> None:
        (tmp_path / "photos").mkdir()
        sentence_of(cli(command, str(tmp_path / "photos")), DATA, "is not a run: it has no config.yaml")
        assert not list((tmp_path / "photos").iterdir())

    @pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"", b"[]", b"{}", b"5"])
    def test_corrupt_summary(self, content: bytes, command: str, cli: Cli, run: Path) -> None:
        (run / "summary.json").write_bytes(content)
        sentence_of(cli(command, str(run)), DATA, "is corrupt: summary.json")

    @pytest.mark.parametrize(
        "change",
        [{"unfinished": 1}, {"personal_unfinished": [0.5]}, {"personal": {"accuracy": {}}}, {"personal": {"x": "y"}}],
    )
    def test_a_summary_with_another_kind_of_value(
        self, change: dict[str, Any], command: str, cli: Cli, run: Path
    ) -> None:
        file = run / "summary.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | change))
        sentence_of(cli(command, str(run)), DATA, "is corrupt: summary.json is not what was written")

    def test_a_summary_that_tells_of_who_did_not_finish_and_no_more(self, command: str, cli: Cli, run: Path) -> None:
        file = run / "summary.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"unfinished": [0], "personal_unfinished": {}}))
        said = cli(command, str(run))
        assert said.code == 0
        assert "finish failed on 1 of 4 clients, which are not in personal\n" in said.out

    @pytest.mark.parametrize("content", [b"train:\n\tlr: 1\n", b"- a\n", b"\xff", b""])
    def test_corrupt_config(self, content: bytes, command: str, cli: Cli, run: Path) -> None:
        (run / "summary.json").unlink()
        (run / "config.yaml").write_bytes(content)
        sentence_of(cli(command, str(run)), DATA, "is corrupt")


def test_show_of_an_incomplete_config(cli: Cli, run: Path) -> None:
    (run / "summary.json").unlink()
    (run / "config.yaml").write_text("seed: 3\n")
    sentence_of(cli("show", str(run)), DATA, "is corrupt: config.yaml has no 'method'")


def test_resume_of_a_changed_config(cli: Cli, run: Path) -> None:
    (run / "summary.json").unlink()
    (run / "config.yaml").write_text((run / "config.yaml").read_text().replace("rounds: 1", "rounds: -1"))
    sentence_of(cli("resume", str(run)), DATA, "'rounds': input should be greater than or equal to 1 (got -1)")


def test_resume_when_every_checkpoint_is_corrupt(cli: Cli, run: Path) -> None:
    (run / "summary.json").unlink()
    for head in run.glob("checkpoints/*/head.json"):
        head.write_text("{")
    sentence_of(cli("resume", str(run), "--quiet"), DATA, "is corrupt; the run cannot be resumed")


def test_resume_of_a_run_in_use(cli: Cli, run: Path) -> None:
    from polyfed.engine.run_folder import RunFolder

    (run / "summary.json").unlink()
    with RunFolder(run).locked():
        sentence_of(cli("resume", str(run), "--quiet"), DATA, "is in use")


# ---- init


def test_init_is_missing(cli: Cli, tiny_words: Words, tmp_path: Path) -> None:
    said = cli("run", *tiny_words, f"init={tmp_path / 'nothing.safetensors'}", "--quiet")
    sentence_of(said, DATA, "init: cannot read a model from")


def test_init_is_no_model(cli: Cli, tiny_words: Words, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("hello")
    said = cli("run", *tiny_words, f"init={tmp_path / 'note.txt'}", "--quiet")
    sentence_of(said, DATA, "init: cannot read a model from")


def test_init_is_no_run(cli: Cli, tiny_words: Words, tmp_path: Path) -> None:
    said = cli("run", *tiny_words, f"init={tmp_path}", "--quiet")
    sentence_of(said, DATA, "is not a run with a checkpoint")


def test_init_is_a_run_of_another_model(cli: Cli, tiny_words: Words, good_run: Path) -> None:
    said = cli("run", *tiny_words, "model.width=0.2", f"init={good_run}", "--quiet")
    sentence_of(said, DATA, "has another shape than model 'mlp' here")


def test_init_is_a_file_of_another_model(cli: Cli, tiny_words: Words, tmp_path: Path) -> None:
    save_file({"weight": torch.zeros(3)}, tmp_path / "other.safetensors")
    said = cli("run", *tiny_words, f"init={tmp_path / 'other.safetensors'}", "--quiet")
    sentence_of(said, DATA, "has no tensor")


# ---- the run failed

FAULTY = """
from polyfed.methods import Method

class InTraining(Method):
    def train(self, client):
        raise ValueError("no idea")

class InMerging(Method):
    def merge(self, server, uploads):
        raise ValueError("no idea")

class Diverging(Method):
    def merge(self, server, uploads):
        server.shared = server.average(uploads)
        server.shared.flat.fill_(float("nan"))
"""


@pytest.mark.parametrize(
    ("name", "fragment"),
    [
        ("InTraining", "fell below the quorum (0.5 of the selected clients) 5 times; the last failure: client"),
        ("InMerging", "ValueError: no idea"),
        ("Diverging", "the shared model is not finite after round 1: lower train.lr or set train.clip"),
    ],
)
def test_method_that_fails(name: str, fragment: str, cli: Cli, tiny_words: Words, tmp_path: Path) -> None:
    (tmp_path / "faulty.py").write_text(FAULTY)
    said = cli("run", *tiny_words, f"method={tmp_path / 'faulty.py'}:{name}", "--quiet")
    sentence_of(said, FAILED, fragment)


def test_debug_shows_where(cli: Cli, tiny_words: Words, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback is there for whoever asks for it."""
    monkeypatch.setenv("POLYFED_DEBUG", "1")
    (tmp_path / "faulty.py").write_text(FAULTY)
    said = cli("run", *tiny_words, f"method={tmp_path / 'faulty.py'}:InMerging", "--quiet")
    assert said.code == FAILED
    assert 'raise ValueError("no idea")' in said.err


def test_log_says_where_a_method_failed(cli: Cli, tiny_words: Words, tmp_path: Path) -> None:
    (tmp_path / "faulty.py").write_text(FAULTY)
    cli("run", *tiny_words, f"method={tmp_path / 'faulty.py'}:InTraining", "--quiet", "--out", str(tmp_path / "r"))
    assert 'raise ValueError("no idea")' in (tmp_path / "r" / "log.txt").read_text()


# ---- trouble of the machine


def test_a_full_disk(cli: Cli, tiny_words: Words, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever write finds the disk full: one sentence, and with room again the run goes on."""
    real, run = os.fsync, tmp_path / "run"
    for last in (0, 3, 6):  # the config, a memory or checkpoint, the summary
        calls = iter(range(100))

        def full(handle: int, last: int = last, calls: Any = calls) -> None:
            if next(calls) >= last:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(handle)

        shutil.rmtree(run, ignore_errors=True)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            said = cli("run", *tiny_words, "--quiet", "--out", str(run))
        sentence_of(said, DATA, f"this machine refuses: No space left on device ('{run}")
        if last > 1:
            assert cli("resume", str(run), "--quiet").code == 0


def test_a_full_device(cli: Cli, good_run: Path, tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    words = [sys.executable, "-m", "polyfed.cli", "show", str(good_run)]
    with open("/dev/full", "w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (DATA, "polyfed: this machine refuses: No space left on device\n")


def test_too_many_open_files(cli: Cli, run: Path) -> None:
    (run / "summary.json").unlink()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, before[1]))
    try:
        said = cli("resume", str(run), "--quiet")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    sentence_of(said, DATA, "this machine refuses: Too many open files")


VANISHING = """
import shutil
from pathlib import Path
from polyfed.methods import Method

class Vanishing(Method):
    def merge(self, server, uploads):
        super().merge(server, uploads)
        shutil.rmtree(Path(__file__).parent / "r")
"""


def test_a_directory_that_is_deleted_under_the_run(cli: Cli, tiny_words: Words, tmp_path: Path) -> None:
    (tmp_path / "vanishing.py").write_text(VANISHING)
    method = f"method={tmp_path / 'vanishing.py'}:Vanishing"
    said = cli("run", *tiny_words, method, "--quiet", "--out", str(tmp_path / "r"))
    sentence_of(said, DATA, "this machine refuses: No such file or directory")
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        np._core._exceptions._ArrayMemoryError((10**9, 10**9), np.dtype(float)),
        RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory: you tried to"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("std::bad_alloc"),
    ],
    ids=["python", "numpy", "torch", "cuda", "C++"],
)
def test_too_little_memory(
    error: Exception, cli: Cli, tiny_words: Words, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from polyfed.methods import Method

    def merge(*_: Any) -> None:
        raise error

    monkeypatch.setattr(Method, "merge", merge)
    sentence_of(cli("run", *tiny_words, "--quiet"), DATA, "this machine has too little memory")


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[enforce fail at inline_container.cc:664] . No space left on device"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        sqlite3.OperationalError("database or disk is full"),
    ],
    ids=["torch", "safetensors", "sqlite"],
)
def test_a_full_disk_that_a_library_tells_of(error: Exception) -> None:
    assert "this machine refuses: " in str(trouble(error))


def test_a_shortage_beneath_another_error() -> None:
    for cause, known in (
        (OSError(errno.ENOSPC, "No space left on device"), "this machine refuses: No space left on device"),
        (MemoryError(), "this machine has too little memory"),
        (PermissionError(errno.EACCES, "Permission denied"), "None"),  # what the library makes of it is its own affair
    ):
        error = KeyError("strange")
        error.__cause__ = cause
        assert str(trouble(error)) == known
    assert trouble(ValueError("no idea")) is None


def test_too_little_memory_for_a_client(cli: Cli, tiny_words: Words, monkeypatch: pytest.MonkeyPatch) -> None:
    from polyfed.methods import Method

    def train(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(Method, "train", train)
    said = sentence_of(cli("run", *tiny_words, "--quiet"), FAILED, "this machine has too little memory")
    assert "fault" not in said


@pytest.mark.parametrize("command", ["run", "resume", "show", "report", "predict", "view"])
def test_a_path_that_is_too_long(command: str, cli: Cli, tiny_words: Words, tmp_path: Path) -> None:
    for path in (str(tmp_path / ("x" * 5000)), "/".join(["x" * 200] * 50), f"{tmp_path / ('x' * 5000)}.yaml"):
        more = ["--global", "--input", "rows.npy"] if command == "predict" else []
        said = cli(command, path, *more)
        assert said.code in (USAGE, DATA), said
        sentence_of(said, said.code, "")
    if command == "run":
        said = cli("run", *tiny_words, "--out", str(tmp_path / ("x" * 5000)))
        sentence_of(said, USAGE, "cannot write to")


# ---- wrong types in the files of a run

JSON = {
    "summary.json": ["fingerprint", "method", "seed", "personal", "personal.accuracy", "bytes", "bytes.up", "seconds"],
    "federation.json": ["class_names", "heldout", "clients", "clients.0.counts", "clients.0.name", "clients.0.id"],
    "environment.json": ["command", "torch"],
}
WRONG: list[Any] = [None, True, "x", -1, float("nan"), float("inf"), [], {}, [[]], {"a": {"b": []}}, 10**400]


def changed(tree: Any, place: str, value: Any) -> Any:
    """The tree with another value at a dotted place."""
    first, _, rest = place.partition(".")
    key: Any = int(first) if first.isdigit() else first
    tree[key] = changed(tree[key], rest, value) if rest else value
    return tree


@pytest.mark.parametrize(("name", "place"), [(name, place) for name, places in JSON.items() for place in places])
def test_wrong_types_in_json(name: str, place: str, cli: Cli, run: Path, good_run: Path) -> None:
    for value in WRONG:
        tree = changed(json.loads((good_run / name).read_text()), place, value)
        (run / name).write_text(json.dumps(tree))
        for words in (["show", str(run)], ["report", str(run)]):
            said = cli(*words)
            assert said.code in (0, DATA), (value, said)
            if said.code:
                sentence_of(said, DATA, "")


@pytest.mark.parametrize("table", ["rounds", "clients", "classes", "training", "spent"])
def test_wrong_types_in_csv(table: str, cli: Cli, run: Path, good_run: Path) -> None:
    from polyfed.report.runs import WORDS, records

    lines = (good_run / f"{table}.csv").read_text().splitlines()
    for column, name in enumerate(lines[0].split(",")):
        for value in ("", "x", "-1", "nan", "inf", "9" * 400, "1.5", '"'):
            cells = lines[-1].split(",")
            cells[column] = value
            (run / f"{table}.csv").write_text("\n".join([*lines[:-1], ",".join(cells)]) + "\n")
            if value in ("x", "inf", "9" * 400, '"') and name not in WORDS:
                with pytest.raises(DataError, match=rf"is corrupt: {table}\.csv"):
                    records(run, table)
            else:
                with contextlib.suppress(DataError):
                    records(run, table)
        said = cli("report", str(run)) if column % 4 == 0 else None  # with the lone quote
        assert said is None or sentence_of(said, DATA, f"is corrupt: {table}.csv")


@pytest.mark.parametrize("content", [b"", b"PK", b"garbage", b"\x93NUMPY"])
def test_damaged_counts(content: bytes, cli: Cli, tiny: dict[str, Any], tmp_path: Path) -> None:
    """An empty file is not an interruption."""
    import polyfed

    made = polyfed.compare(tiny, methods=["fedavg", "local"], seeds=1, baseline="local", out=tmp_path / "c")
    for file in made.path.glob("*/counts.npz"):
        file.write_bytes(content)
    sentence_of(cli("show", str(made.path)), DATA, "is corrupt: counts.npz")
    sentence_of(cli("report", str(made.path)), DATA, "is corrupt: counts.npz")


PROGRESS: list[Any] = [{"round": "x"}, {"round": None}, {"seconds": []}, {"bytes": {"up": "x"}}, 5, []]


@pytest.mark.parametrize("progress", PROGRESS, ids=map(str, PROGRESS))
def test_wrong_types_in_checkpoints(progress: Any, cli: Cli, run: Path) -> None:
    """Hashes are right: whoever wrote this knew how."""
    (run / "summary.json").unlink()
    for file in run.glob("checkpoints/*/head.json"):
        head = json.loads(json.loads(file.read_text())["head"])
        head["progress"] = head["progress"] | progress if isinstance(progress, dict) else progress
        text = json.dumps(head)
        file.write_text(json.dumps({"sha256": hashlib.sha256(text.encode()).hexdigest(), "head": text}))
    sentence_of(cli("resume", str(run), "--quiet"), DATA, "is corrupt; the run cannot be resumed")


# ---- files of a run that are gone, or another's


def test_a_report_without_rounds(cli: Cli, run: Path) -> None:
    (run / "rounds.csv").unlink()
    for words in (["report", str(run)], ["show", str(run)], ["figure", "tail", str(run), "--out", str(run / "t.pdf")]):
        said = cli(*words)
        assert said.code == 0
        assert said.err == f"polyfed: the run at '{run}' has no rounds.csv: what is drawn from it is left out\n"
    assert "has no rounds.csv" in (run / "report.html").read_text()


def test_a_replaced_config(cli: Cli, run: Path) -> None:
    file = run / "config.yaml"
    file.write_text(file.read_text().replace("lr: 0.05", "lr: 0.7"))
    what = f"the config.yaml of the run at '{run}' is not the one it ran with: train.lr (0.05, now 0.7)"
    for command in ("show", "report"):
        said = cli(command, str(run))
        assert (said.code, said.err) == (0, f"polyfed: {what}\n")
    sentence_of(cli("export", str(run), "--client", "0"), USAGE, "differs in train.lr (0.05, now 0.7)")


def test_a_config_that_only_says_where_it_works(cli: Cli, run: Path) -> None:
    file = run / "config.yaml"
    file.write_text(file.read_text().replace("workers: 0", "workers: 7"))
    assert cli("show", str(run)).err == ""


def test_other_data_than_the_run_had(tiny: dict[str, Any], tmp_path: Path) -> None:
    import polyfed

    numbers = np.random.default_rng(0)
    keys = {key: value for key, value in tiny.items() if not key.startswith("data.")}
    x, y = numbers.normal(size=(120, 6)).astype(np.float32), numbers.integers(3, size=120)
    result = polyfed.run(keys, data=(x, y), out=tmp_path / "r")
    for other in ((x + 1, y), (x[:, :4], y), (x, y[::-1]), (x[:80], y[:80])):
        with pytest.raises(UsageError, match=r"belongs to a run on other data, .* give the very data it had"):
            result.client(1, data=other)
    assert len(result.client(1, data=(x, y)).predict(x[:5])) == 5


# ---- what is said, and does not end the run


def test_more_workers_than_clients(cli: Cli, tiny_words: Words, tmp_path: Path) -> None:
    words = [*tiny_words, "split.clients=2", "engine.workers=500", "--quiet", "--out", str(tmp_path / "r")]
    assert cli("run", *words).code == 0
    assert "engine.workers=500 is more than the 2 clients: 2 work" in (tmp_path / "r" / "log.txt").read_text()


def test_fedbn_on_a_model_without_normalisation(cli: Cli, tiny_words: Words, good_run: Path, tmp_path: Path) -> None:
    said = cli("run", *tiny_words, "method=fedbn", "--quiet", "--out", str(tmp_path / "r"))
    what = "model 'mlp' has no bn, which is all that fedbn keeps personal: it learns as FedAvg"
    assert said.code == 0
    assert f"fedbn: {what}\n" in said.out
    assert what in (tmp_path / "r" / "log.txt").read_text()
    summary, plain = (json.loads((one / "summary.json").read_text()) for one in (tmp_path / "r", good_run))
    assert summary["remarks"] == [what]
    assert summary["personal"] == plain["personal"]
    assert plain["remarks"] == []
    assert cli("run", *tiny_words, "method=fedbn", "model=mlp-bn", "--quiet").out.count("learns as FedAvg") == 0


# ---- not wrong uses


def test_lone_samples_are_trained_on_or_counted(cli: Cli, tiny_words: Words, tmp_path: Path) -> None:
    """A client with one sample learns with BN in eval mode; a lone sample left over by an epoch is skipped."""
    numbers = np.random.default_rng(0)
    for name, count in (("anna", 1), ("bob", 33), ("carl", 32)):
        (tmp_path / "clients" / name).mkdir(parents=True)
        x, y = numbers.normal(size=(count, 3)).astype(np.float32), numbers.integers(2, size=count)
        np.savez(tmp_path / "clients" / name / "all.npz", x=x, y=y)
    words = [w for w in tiny_words if not w.startswith(("data.", "split."))]
    words += ["data=folder", f"data.root={tmp_path / 'clients'}", "split.partition=users"]
    words += ["split.test=none", "model=mlp-bn", "train.batch=16", "train.epochs=2"]
    said = cli("run", *words, "--quiet", "--out", str(tmp_path / "r"))
    assert said.code == 0, said.err
    rows = pandas.read_csv(tmp_path / "r" / "training.csv").set_index("client")
    assert list(rows["status"]) == ["accepted"] * 3
    assert list(rows["eval_mode_steps"]) == [2, 0, 0]
    assert list(rows["skipped_batches"]) == [0, 2, 0]
    assert list(rows["steps"]) == [2, 4, 4]
    assert list(rows["samples"]) == [2, 64, 64]
    assert rows["loss"].between(0, 10).all()
    assert json.loads((tmp_path / "r" / "summary.json").read_text())["personal"] is None  # nobody has a test


def test_json_changes_nothing(cli: Cli, tmp_path: Path) -> None:
    """With --json too, a wrong use prints nothing on stdout: what reads it sees the exit code."""
    sentence_of(cli("show", str(tmp_path / "nothing"), "--json"), DATA, "there is no run at")
    with pytest.raises(json.JSONDecodeError):
        json.loads(cli("run", "rouns=3", "--json").out)
