"""What a hostile or unlucky world may hand to polyfed: strategies for it, and what is done with each piece.

Every piece is plain data that JSON can hold, so that one that does harm is kept as a file and tried again.
"""

import contextlib
import io
import json
import os
import shutil
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from hypothesis import strategies as st
from PIL import Image

from polyfed import cli
from polyfed.api import config_of
from polyfed.config import flatten, make_config, registry_of
from polyfed.engine.local import Serial
from polyfed.engine.rounds import Run
from polyfed.engine.run_folder import RunFolder
from polyfed.errors import PolyfedError
from polyfed.message import Memory, Message
from polyfed.methods.base import methods
from polyfed.report.progress import Silent
from polyfed.report.view.listing import Listing

Piece = dict[str, Any]
TINY = {
    "data.limit": 10,
    "split.clients": 3,
    "split.alpha": 1.0,
    "rounds": 1,
    "train.batch": 16,
    "model.width": 0.1,
    "eval.classes": False,
    "engine.workers": 0,
}


@dataclass
class Said:
    """How a try ended: an exit code as the command line has it, and what was printed."""

    code: int
    text: str


@dataclass(frozen=True)
class Target:
    """One way in: what may come, and what is done with it in an empty folder."""

    pieces: st.SearchStrategy[Piece]
    attempt: Callable[["Ground", Path, Piece], Said]


class Ground:
    """What tries start from: a finished run, the same stopped before its end, and a comparison."""

    def __init__(self, base: Path):
        self.base, self.made = base, 0
        self.finished, self.stopped, self.comparison = (base / name for name in ("finished", "stopped", "comparison"))
        words = [f"{key}={_word(value)}" for key, value in TINY.items()]
        for command in (
            [
                "run",
                "method=fedper",
                *(word for word in words if not word.startswith("rounds=")),
                "rounds=2",
                "--out",
                str(self.finished),
            ],
            ["compare", "methods=[fedavg,fedper]", *words, "--out", str(self.comparison)],
        ):
            said = command_line(command)
            assert said.code == 0, said.text
        shutil.copytree(self.finished, self.stopped)
        for name in ("summary.json", "counts.npz"):
            (self.stopped / name).unlink()
        shutil.rmtree(self.stopped / "checkpoints" / "at-000002-finished")

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        """An empty folder that is gone afterwards."""
        self.made += 1
        path = self.base / f"try-{os.getpid()}-{self.made}"
        path.mkdir()
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def command_line(words: list[str]) -> Said:
    """A command in this process."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = cli.call([*words, "--quiet"])
    return Said(code, err.getvalue() or out.getvalue())


# ---- values of any kind

STRANGE = [
    "nan",
    "inf",
    "1e309",
    "auto",
    "all",
    "none",
    "../../x",
    "/dev/null",
    "a:b",
    "x.py:X",
    "9" * 5000,
    "a" * 5000,
]
NUMBERS = [0, -1, 1, 2, 3, 10**4, 10**6, 10**9, 2**31, 2**63, 10**15, 10**30, -(10**6), 0.5, 1e-9, 1e30, 1e308]
FLOATS = [*NUMBERS, float("nan"), float("inf"), -float("inf")]
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(FLOATS),
    st.integers(-5, 20),
    st.integers(-(10**30), 10**30),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(STRANGE),
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
)

# ---- configs

CHEAP = (
    "rounds",
    "train.epochs",
    "eval.every",
    "checkpoint.every",
    "engine.workers",
)  # large ones are honest, long work
SMALL = st.sampled_from([0, 1, 2, -1, 0.5, "x", None, True, [1], float("nan")])


def _own(section: str, kind: str, name: str) -> list[str]:
    """The keys that one method, model or partition adds."""
    return [f"{section}.{key}" for key in registry_of(kind).get(name).model_fields]


def _cheap(key: str) -> bool:
    return key in CHEAP or any(word in key for word in ("epochs", "steps", "workers", "experts", "draws"))


def _valued(key: str) -> st.SearchStrategy[tuple[str, Any]]:
    if key in NAMES:
        return st.tuples(st.just(key), st.sampled_from(NAMES[key]) | scalars)
    if key.startswith(("engine.name", "track")):
        return st.tuples(st.just(key), SMALL)
    return st.tuples(st.just(key), SMALL if _cheap(key) else st.one_of(st.sampled_from(FLOATS), scalars, values))


def _of(method: str, model: str, partition: str) -> st.SearchStrategy[Piece]:
    """Some keys of an experiment, its own ones among them, with any values."""
    own = [
        *_own("method", "method", method) * 3,
        *_own("model", "model", model),
        *_own("split", "partition", partition),
    ]
    drawn = st.lists(st.sampled_from([*KEYS, *own]).flatmap(_valued), max_size=3).map(dict)
    return drawn.map(lambda keys: {"method.name": method, "model.name": model, "split.partition": partition} | keys)


NAMES = {
    "method.name": methods.names(),
    "model.name": ["mlp", "mlp-bn", "cnn", "lenet", "resnet8"],
    "split.partition": registry_of("partition").names(),
    "data.name": ["digits", "folder", "mnist"],
}
KEYS = [*flatten(make_config({}).dump()), "method", "train", "split", "nothing"]
chosen = st.tuples(*(st.sampled_from(NAMES[key]) for key in ("method.name", "model.name", "split.partition")))
configs = chosen.flatmap(lambda names: _of(*names))


def try_config(ground: Ground, folder: Path, piece: Piece) -> Said:
    """Run a tiny experiment with some keys of any value."""
    file = folder / "config.yaml"
    keys = piece["keys"]
    tiny = {k: v for k, v in TINY.items() if k != "split.alpha" or keys["split.partition"] == "dirichlet"}
    if keys["method.name"] in NAMES["method.name"]:
        tiny |= {key: 1 for key in _own("method", "method", keys["method.name"]) if _cheap(key)}
    file.write_text(yaml.safe_dump({**tiny, **keys}, allow_unicode=True), encoding="utf-8")
    return command_line(["run", str(file), "--out", str(folder / "out")])


WORDS = [
    *("method: fedper", "data: digits", "train: {lr: 0.1, batch: 4}", "split.clients: 3", "rounds: 1", "seed: &a 3"),
    *("tag: *a", "a: &b [*b, *b]", "&x x: *x", "<<: {rounds: 2}", "? [a, b]\n: c", "train:\n  lr: 1e-3", "- 1", "---"),
    *("!!python/object/apply:os.system ['true']", "x: !!binary aGk=", "rounds: 0x10", "rounds: " + "9" * 5000),
    *("a: &a0 [x, x]\nb: &b0 [*a0, *a0]", "tag: |\n  text", 'tag: "\\ud800"', "tag: \u2028", "[" * 200, "{a: " * 50),
    *("train.schedule: {1: 0.1}", "split: {partition: shards, shards: 2}", "tag: 2026-01-01", "seed: 1e400"),
]
texts = st.tuples(
    st.lists(st.sampled_from(WORDS), max_size=4, unique=True).map("\n".join),
    st.text(max_size=8) | st.text(string.printable, max_size=8),
    st.floats(0, 1, allow_nan=False),
).map(
    lambda drawn: {
        "text": drawn[0][: int(drawn[2] * len(drawn[0]))] + drawn[1] + drawn[0][int(drawn[2] * len(drawn[0])) :]
    }
)


def try_text(ground: Ground, folder: Path, piece: Piece) -> Said:
    """A config file of any text."""
    file = folder / "config.yaml"
    file.write_bytes(_bytes(piece))
    return command_line(["split", str(file)])


def _bytes(piece: Piece) -> bytes:
    return bytes.fromhex(piece["hex"]) if "hex" in piece else piece["text"].encode("utf-8", "surrogatepass")


COMMANDS = ["run", "compare", "resume", "show", "methods", "data", "split", "report", "figure", "export", "predict"]
assigned = st.tuples(st.sampled_from(KEYS) | st.text(max_size=8), values.map(str) | st.text(max_size=12)).filter(
    lambda pair: not _cheap(pair[0]) and not pair[0].startswith(("engine", "track"))
)
words = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["--out", "--json", "--client", "--global", "--input", "--baseline", "--format", "-1", "0", ".", "/"]
    ),
    assigned.map("=".join),
    st.sampled_from(
        ["methods=[fedavg,fedper]", "seeds=10**9", "seeds=1000000", "split.alpha=[0.1,0.2]", "RUN", "COMPARE"]
    ),
).filter(lambda word: "\0" not in word)  # which no command line can hold


def try_words(ground: Ground, folder: Path, piece: Piece) -> Said:
    """A command with any words; what would train for long is only split."""
    places = {"RUN": str(ground.finished), "COMPARE": str(ground.comparison)}
    given = [places.get(word, word) for word in piece["words"]]
    command = "split" if piece["command"] in ("run", "compare") else piece["command"]
    with contextlib.chdir(folder):
        return command_line([command, *given])


# ---- run directories

ENDINGS = {"json": "*.json", "cell": "*.csv", "yaml": "*.yaml"}  # edits that know what a file holds
USES = ["show", "resume", "report", "export", "predict", "view", "compare"]
edits = st.fixed_dictionaries(
    {
        "file": st.integers(0, 40),
        "how": st.sampled_from(
            [
                "flip",
                "cut",
                "replace",
                "append",
                "empty",
                "delete",
                "folder",
                "fifo",
                "loop",
                "link",
                "json",
                "cell",
                "yaml",
            ]
            + ["json", "cell"] * 3
        ),
        "at": st.floats(0, 1, allow_nan=False),
        "hex": st.binary(max_size=12).map(bytes.hex),
        "value": st.sampled_from(FLOATS) | values,
    }
)


def try_run(ground: Ground, folder: Path, piece: Piece) -> Said:
    """Use a run or comparison in which some files are not what they were."""
    source = {"finished": ground.finished, "stopped": ground.stopped, "comparison": ground.comparison}[piece["of"]]
    run = folder / "runs" / "it"
    shutil.copytree(source, run)
    for edit in piece["edits"]:
        _edit(run, edit)
    use = piece["use"]
    if use == "view":
        return _looked_at(folder / "runs")
    return command_line(
        {
            "show": ["show", str(run)],
            "resume": ["resume", str(run)],
            "report": ["report", str(run), "--out", str(folder / "page.html")],
            "export": ["export", str(run), "--client", "0", "--out", str(folder / "export")],
            "predict": ["predict", str(run), "--client", "0", "--input", str(_an_input(folder))],
            "compare": ["show", str(run), "--baseline", "fedavg"],
        }[use]
    )


def _edit(run: Path, edit: Piece) -> None:
    """Do one thing to one file."""
    how = edit["how"]
    files = sorted(path for path in run.rglob(ENDINGS.get(how, "*")) if path.is_file() and path.name != "lock")
    if not files:
        return
    path = files[edit["file"] % len(files)]
    content = path.read_bytes()
    place, drawn = int(edit["at"] * len(content)), bytes.fromhex(edit["hex"])
    changed = {
        "flip": lambda: content[:place] + bytes(255 - b for b in content[place : place + 1]) + content[place + 1 :],
        "cut": lambda: content[:place],
        "replace": lambda: drawn,
        "append": lambda: content + drawn,
        "empty": lambda: b"",
        "json": lambda: _in_json(content, edit),
        "yaml": lambda: _in_yaml(content, edit),
        "cell": lambda: _in_csv(content, edit),
    }
    if how in changed:
        path.write_bytes(changed[how]())
        return
    path.unlink()
    if how == "folder":
        path.mkdir()
    elif how == "fifo":
        os.mkfifo(path)
    elif how in ("loop", "link"):
        path.symlink_to(path.name if how == "loop" else "/etc/hostname")


def _in_json(content: bytes, edit: Piece) -> bytes:
    """One leaf of a JSON file is another value; so is one inside a text that is JSON itself."""
    try:
        tree = json.loads(content)
    except ValueError:
        return content
    if isinstance(tree, dict) and isinstance(tree.get("head"), str):  # a checkpoint's, digest and all
        from polyfed.message import digest_of

        text = json.dumps(_changed(json.loads(tree["head"]), edit))
        return json.dumps({"sha256": digest_of(text.encode()), "head": text}).encode()
    return json.dumps(_changed(tree, edit)).encode()


def _in_yaml(content: bytes, edit: Piece) -> bytes:
    try:
        tree = yaml.safe_load(content)
    except (yaml.YAMLError, UnicodeDecodeError):
        return content
    return yaml.safe_dump(_changed(tree, edit), allow_unicode=True).encode()


def _changed(tree: Any, edit: Piece) -> Any:
    """A tree with one of its parts, drawn by a number, replaced or taken out."""
    places = list(_places(tree))
    if not places:
        return edit["value"]
    above, key = places[int(edit["at"] * (len(places) - 1))]
    if _cheap(str(key)) or (key in ("rounds", "clients") and isinstance(above, dict)):
        above[key] = 2  # what would only make it work for long
    elif edit["hex"][:1] in "01" and edit["hex"]:
        del above[key]
    else:
        above[key] = edit["value"]
    return tree


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in list(pairs):
        yield tree, key
        yield from _places(value)


def _in_csv(content: bytes, edit: Piece) -> bytes:
    """One cell is another text."""
    rows = [line.split(b",") for line in content.split(b"\n")]
    row = rows[int(edit["at"] * (len(rows) - 1))]
    text = edit["value"] if isinstance(edit["value"], str) else json.dumps(edit["value"])
    row[edit["file"] % len(row)] = text.encode("utf-8", "surrogatepass")
    return b"\n".join(b",".join(row) for row in rows)


def _looked_at(root: Path) -> Said:
    """What `view` shows of it, as a browser gets it: JSON without NaN."""
    told = Listing(root).now()
    json.dumps(told, allow_nan=False)
    return Said(0, f"{len(told['runs'])} runs, {len(told['named'])} named")


def _an_input(folder: Path) -> Path:
    np.save(folder / "input.npy", np.zeros((2, 8, 8), np.uint8))
    return folder / "input.npy"


runs = st.fixed_dictionaries(
    {
        "of": st.sampled_from(["finished", "stopped", "comparison"]),
        "use": st.sampled_from(USES),
        "edits": st.lists(edits, min_size=1, max_size=3),
    }
)

# ---- data folders and inputs

KINDS = ["uint8", "float32", "float64", "int64", "bool", "complex64", "<U3", "datetime64[s]", "int8", "float16"]
arrays = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(KINDS),
        "shape": st.lists(st.integers(0, 9), max_size=4),
        "labels": st.lists(st.sampled_from([0, 1, 2, 3, -1, 10**9, 2**62]), max_size=9),
        "label_dtype": st.sampled_from(["int64", "int64", "float32", "uint8", "<U3", "int32"]),
        "fill": st.sampled_from([0, 1, 200, float("nan"), float("inf"), 1e30]),
        "keys": st.sampled_from([["x", "y"], ["x", "y"], ["x", "y"], ["x"], ["y"], ["a", "b"]]),
    }
)
samples = st.one_of(
    arrays.map(lambda piece: {"arrays": piece}),
    st.binary(max_size=40).map(lambda content: {"hex": content.hex()}),
    st.fixed_dictionaries(
        {
            "image": st.tuples(st.integers(1, 40), st.integers(1, 40)),
            "mode": st.sampled_from(["1", "L", "RGB", "RGBA", "P"]),
        }
    ),
    st.sampled_from([{"folder": True}, {"fifo": True}, {"loop": True}, {"cut": 0.5}]),
)
names = st.sampled_from(
    ["a.npz", "b.npz", "0/p.png", "1/p.png", "1/q.jpg", "cat/a.png", ".hidden", "x.txt", "0/z.npz", "é/p.png"]
)
clients = st.dictionaries(
    st.sampled_from(["one", "two", "three", ".four", "x y"]), st.dictionaries(names, samples, max_size=4), max_size=3
)
folders = st.fixed_dictionaries(
    {
        "clients": clients,
        "keys": st.dictionaries(
            st.sampled_from(
                ["data.size", "data.classes", "split.partition", "split.test", "data.augment", "split.clients"]
            ),
            st.sampled_from([1, 3, 0, -1, 10**9, "users", "domains", "iid", "none", "auto", "crop", ["a", "b"], 0.5]),
            max_size=2,
        ),
        "train": st.booleans(),
    }
)


def try_folder(ground: Ground, folder: Path, piece: Piece) -> Said:
    """Data of one's own, in folders of clients."""
    root = folder / "data"
    root.mkdir()
    for client, files in piece["clients"].items():
        (root / client).mkdir()
        for name, sample in files.items():
            _put(root / client / name, sample)
    keys = {"data.name": "folder", "data.root": str(root), "split.partition": "users", "model": "mlp", **piece["keys"]}
    for key in ("data.limit", "rounds", "train.batch", "model.width", "engine.workers"):
        keys[key] = TINY[key]
    words = [f"{key}={json.dumps(value)}" for key, value in keys.items()]
    return command_line(["run", *words, "--out", str(folder / "out")] if piece["train"] else ["split", *words])


def _put(path: Path, sample: Piece) -> None:
    """One file of a data folder."""
    path.parent.mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError):
        if "arrays" in sample:
            np.savez(path.with_suffix(".npz"), **_arrays(sample["arrays"]))
        elif "hex" in sample:
            path.write_bytes(bytes.fromhex(sample["hex"]))
        elif "image" in sample:
            Image.new(sample["mode"], tuple(sample["image"])).convert("RGB").save(path.with_suffix(".png"))
        elif "cut" in sample:
            np.savez(path, x=np.zeros((4, 8, 8), np.uint8), y=np.arange(4))
            whole = path if path.exists() else path.with_name(f"{path.name}.npz")
            whole.write_bytes(whole.read_bytes()[: int(sample["cut"] * whole.stat().st_size)])
        elif "folder" in sample:
            path.mkdir()
        elif "fifo" in sample:
            os.mkfifo(path)
        else:
            path.symlink_to(path.name)


def _arrays(piece: Piece) -> dict[str, np.ndarray]:
    with np.errstate(all="ignore"):
        x = np.full(piece["shape"], piece["fill"]).astype("float64")
        x = x.astype(piece["dtype"]) if piece["dtype"][0] != "d" else np.zeros(piece["shape"], piece["dtype"])
        y = np.array(piece["labels"], dtype="int64").astype(piece["label_dtype"])
    return dict(zip(piece["keys"], (x, y), strict=False))


inputs = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["i.npy", "i.npz", "i.csv", "i.png", "i", "d"]),
        "sample": samples,
        "text": st.text('0123456789,.eE-+naif\n" ;x', max_size=60),
    }
)


def try_input(ground: Ground, folder: Path, piece: Piece) -> Said:
    """Samples to predict."""
    path = folder / piece["name"]
    if path.suffix == ".csv" and "hex" not in piece["sample"]:
        path.write_text(piece["text"])
    elif path.suffix == ".npy" and "arrays" in piece["sample"]:
        np.save(path, next(iter(_arrays(piece["sample"]["arrays"]).values())))
    else:
        _put(path, piece["sample"])
    return command_line(["predict", str(ground.finished), "--client", "0", "--input", str(path)])


# ---- messages

tensors = st.tuples(
    st.sampled_from(["float32", "int64", "float64", "bool", "bfloat16"]), st.lists(st.integers(0, 3), max_size=3)
)
bundles = st.dictionaries(
    st.sampled_from(["w", "w.integers", "a#flat", "a#integers"])
    | st.text("abw.#", max_size=4).filter(lambda name: not hasattr(Message, name)),
    tensors,
    max_size=3,
)
blobs = st.fixed_dictionaries(
    {
        "tensors": bundles,
        "numbers": st.dictionaries(st.sampled_from("abc"), st.integers() | st.floats(), max_size=2),
        "changes": st.lists(st.tuples(st.floats(0, 1, allow_nan=False), st.integers(0, 255)), max_size=4),
        "header": st.none() | values,
        "cut": st.floats(0, 1, allow_nan=False) | st.just(1.0),
        "length": st.none() | st.integers(0, 2**64 - 1),
    }
)


def _tensors(drawn: Piece) -> dict[str, torch.Tensor]:
    return {name: torch.zeros(shape, dtype=getattr(torch, kind)) for name, (kind, shape) in drawn.items()}


def try_message(ground: Ground, folder: Path, piece: Piece) -> Said:
    """Bytes from a foreign peer: a bundle, or a ValueError."""
    made = _tensors(piece["tensors"])
    blob = bytearray(Message(**made, **{k: v for k, v in piece["numbers"].items() if k not in made}).encode())
    if piece["header"] is not None:
        header = json.dumps({"__metadata__": {"numbers": json.dumps(piece["header"])}, "t": piece["header"]}).encode()
        blob = bytearray(len(header).to_bytes(8, "little") + header)
    if piece["length"] is not None:
        blob[:8] = piece["length"].to_bytes(8, "little")
    for at, value in piece["changes"]:
        blob[int(at * (len(blob) - 1))] = value
    try:
        for kind in (Message, Memory):
            kind.decode(bytes(blob[: int(piece["cut"] * len(blob))]))
    except ValueError as error:
        return Said(3, str(error))
    return Said(0, "decoded")


# ---- what a site says

said = st.fixed_dictionaries(
    {
        "when": st.sampled_from(["hello", "train", "evaluate"]),
        "numbers": st.dictionaries(
            st.sampled_from(["n", "name", "loss", "samples", "steps", "seconds", "x"]), values, max_size=2
        ),
        "counts": st.none()
        | st.fixed_dictionaries(
            {
                "of": st.sampled_from(["train", "selected", "personal", "x"]),
                "dtype": st.sampled_from(KINDS),
                "shape": st.sampled_from([[10], [10, 10], [10, 11]])
                | st.lists(st.sampled_from([0, 1, 10]), max_size=3),
                "fill": st.sampled_from([0, 1, -1, 10**9, 1e30, float("nan")]),
            }
        ),
        "up": st.none() | bundles | st.fixed_dictionaries({"scale": st.sampled_from(FLOATS)}),
    }
)


class Liar(Serial):
    """The local engine, with one client whose every word is drawn."""

    def __init__(self, piece: Piece):
        self.piece = piece

    def _spoken(self, when: str, outcome: Any) -> Any:
        piece = self.piece
        if outcome.client != 1 or when != piece["when"]:
            return outcome
        counts = dict(outcome.counts)
        if piece["counts"]:
            drawn = {**piece["counts"], "labels": [], "label_dtype": "int64", "keys": ["x"]}
            counts[drawn["of"]] = _arrays(drawn)["x"]
            if when == "hello" and counts[drawn["of"]].dtype.kind in "uifb":
                counts[drawn["of"]] = torch.from_numpy(counts[drawn["of"]])
        numbers = {**outcome.numbers, **piece["numbers"]}
        return replace(outcome, numbers=numbers, counts=counts, up=self._sent(outcome.up))

    def _sent(self, up: Message) -> Message:
        """An upload with other or longer tensors in it."""
        drawn, honest = self.piece["up"], dict(up.items())
        if not drawn or not honest:
            return up
        if "scale" in drawn:
            return Message(**{name: value * float(drawn["scale"]) for name, value in honest.items()})
        return Message(**honest | _tensors(drawn))

    def hello(self) -> Iterator[Any]:
        return (self._spoken("hello", outcome) for outcome in super().hello())

    def run(self, jobs: Any, deadline: Any, meanwhile: Any) -> Iterator[Any]:
        for outcome in super().run(jobs, deadline, meanwhile):
            yield self._spoken(jobs[0].kind, outcome)


def try_site(ground: Ground, folder: Path, piece: Piece) -> Said:
    """A run in which one of four sites says anything: it ends well, whatever becomes of that site."""
    config = config_of({**TINY, "split.clients": 4, "method": "fedper", "rounds": 2})
    run = Run(config, RunFolder.create(config, folder / "out"), Liar(piece), Silent())
    try:
        run.go()
    except PolyfedError as error:
        return Said(error.exit_code, f"polyfed: {error}")
    return Said(0, (folder / "out" / "log.txt").read_text().splitlines()[-1])


TARGETS = {
    "config": Target(st.fixed_dictionaries({"keys": configs}), try_config),
    "text": Target(texts | texts | st.binary(max_size=40).map(lambda drawn: {"hex": drawn.hex()}), try_text),
    "words": Target(
        st.fixed_dictionaries({"command": st.sampled_from(COMMANDS), "words": st.lists(words, max_size=4)}), try_words
    ),
    "run": Target(runs, try_run),
    "folder": Target(folders, try_folder),
    "input": Target(inputs, try_input),
    "message": Target(blobs, try_message),
    "site": Target(said, try_site),
}
