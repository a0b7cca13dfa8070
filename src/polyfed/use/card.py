"""The card of an exported model: what it is, what it takes, how good it was, and where it comes from."""

import csv
import io
import json
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any

from torch import nn

from polyfed.config import Tree, flatten, write_yaml
from polyfed.engine.run_folder import RunFolder
from polyfed.measure.guarantee import privacy_sentence
from polyfed.measure.stored import Federation, read_json
from polyfed.models.base import bn_modules
from polyfed.use.predictor import Predictor

MEASURES = {
    "personal": "the client's own model on its local test, before finish",
    "personal_final": "the client's own model on its local test, after finish",
    "personal_selected": "the client's model on its local test, right after it trained in that round",
    "personal_unfinished": "the client's own model on its local test; its finish failed",
    "heldout": "the model of this client, which never trained, on its local test, after finish",
    "global_local": "the one global model on the client's local test",
    "val": "the client's own model on its validation samples, before finish",
    "global": "the one global model on the global test set",
}
MARKDOWN = set("\\`*_{}[]()<>#+!|~$&")  # letters that mean something
NAMES = ("accuracy", "balanced", "head", "mid", "tail")
LEFT_OUT = (  # of this machine
    *("data.root", "data.key", "data.file", "data.vocabulary", "model.weights", "init", "device"),
    *("engine.", "track.", "checkpoint.", "eval."),
)
USE = {
    "safetensors": "`model.safetensors` holds the weights by name, `model.json` how the network is built again.",
    "onnx": "`model.onnx` takes `x` (any number of rows, prepared as below) and gives `logits`.",
    "torch-export": "`torch.export.load('model.pt2').module()` takes prepared rows, any number of them, and gives "
    "logits. Torch's loader trusts the file it is given; `polyfed predict` looks it through first.",
}


def card(folder: RunFolder, config: Tree, client: int | None, predictor: Predictor, form: str, worst: float) -> str:
    """Markdown about the model that answers for a client, or for all, of this run."""
    summary, who = folder.result() or {}, "the global model" if client is None else _whose(folder, client)
    parts = [
        f"# {who[0].upper()}{who[1:]}\n",
        f"Method `{_short(config['method']['name'])}`, model `{_short(config['model']['name'])}`, "
        f"data `{config['data']['name']}`, "
        f"seed {config['seed']}; {_state(folder, config)}.\n",
        f"{USE[form]} On {_tried(worst)} Answers on new samples: "
        "`polyfed predict THIS_FOLDER --input x.npy --out answers.csv`.\n",
        "## What it takes\n",
        *_input_lines(predictor),
        "\n## Classes\n",
        *_class_lines(predictor),
        "\n## Numbers\n",
        *_number_lines(folder, client),
        *_privacy_lines(summary, config),
        "\n## How it was trained\n",
        "```yaml",
        write_yaml({key: _short(value) for key, value in flatten(config).items() if _tells(key, value)}) + "```\n",
        "## Where it comes from\n",
        f"- run: {folder.path.name}; fingerprint: {summary.get('fingerprint', 'none, the run is not finished')}",
        f"- exported with polyfed {metadata.version('polyfed')}; trained with {_versions(folder)}",
    ]
    return "\n".join(parts) + "\n"


def _whose(folder: RunFolder, client: int) -> str:
    name = folder.named(client)
    return f"the model of client {client}" + (f", {_plain(name)}" if name else "")


def _plain(name: str) -> str:
    """A client's name in Markdown: somebody else chose it, and it is text and nothing more."""
    return "".join(f"\\{letter}" if letter in MARKDOWN else letter for letter in " ".join(name.split()))


def _tried(worst: float) -> str:
    return f"samples of the run's data its logits differ from the run's own by at most {worst:.2g}."


def _reached(folder: RunFolder) -> tuple[int, bool]:
    """The round of the checkpoint behind this model, and whether the finish round is in it."""
    _, done, *finished = folder.checkpoints()[-1].split("-")
    return int(done), bool(finished)


def _state(folder: RunFolder, config: Tree) -> str:
    done, finished = _reached(folder)
    when = "after finish" if finished else "before finish: the run is not finished"
    return f"after round {done} of {config['rounds']}, {when}"


def _input_lines(predictor: Predictor) -> Iterator[str]:
    prepare = predictor.preparation
    shape = ", ".join(map(str, prepare.shape))
    yield f"Raw: {prepare.dtype} [N, {shape}]" + (" (height, width, channels)." if prepare.images else ".")
    if prepare.any_size:
        yield "Picture files of any size are resized when they are read, as the run's own were."
    kind = "int64" if prepare.tokens else "float32"
    yield f"Prepared: {kind} [N, {', '.join(map(str, prepare.model_shape))}]; `preprocessing.json` has the numbers:\n"
    yield from (f"{number}. {step}" for number, step in enumerate(prepare.steps(), 1))
    model = predictor.model
    if isinstance(model, nn.Module) and any(not norm.track_running_stats for norm in bn_modules(model)):
        yield f"\nIts norms go by the batch ({predictor.batch} rows): an answer depends on the rows asked with it."


def _class_lines(predictor: Predictor) -> Iterator[str]:
    never = sorted(set(range(len(predictor.class_names))) - set(answered(predictor)))
    yield f"{len(predictor.class_names)}: {', '.join(predictor.class_names)}."
    if never:
        names = ", ".join(predictor.class_names[c] for c in never)
        yield f"Never answered, because the client holds no sample of them: {names}."


def answered(predictor: Predictor) -> list[int]:
    """The classes the model can answer; an ensemble may mask those its client does not hold."""
    import numpy as np

    prepare = predictor.preparation
    blank = predictor.logits(np.zeros((1, *prepare.shape), prepare.dtype))[0]
    return blank.isfinite().view(len(blank), -1).any(1).nonzero().flatten().tolist()


def _number_lines(folder: RunFolder, client: int | None) -> Iterator[str]:
    rows = {row["measure"]: row for row in _rows(folder, "rounds") if row["measure"] == "global"}
    if client is not None:
        rows |= {row["measure"]: row for row in _rows(folder, "clients") if row["client"] == str(client)}
    told = {measure: row for measure, row in rows.items() if row["accuracy"]}
    if not told:
        yield "None are recorded."
        return
    names = (*NAMES, *(("miou",) if all("miou" in row for row in told.values()) else ()))
    yield "| measure | " + " | ".join(names) + " | samples | round | what it is |"
    yield "|---|" + "---:|" * (len(names) + 2) + "---|"
    for measure, row in told.items():
        cells = [f"{100 * float(row[name]):.1f} %" if row[name] else "–" for name in names]
        cells = [measure, *cells, row.get("samples", "–"), row["round"], MEASURES.get(measure, measure)]
        yield f"| {' | '.join(cells)} |"
    yield "\nbalanced: mean recall over classes; head, mid, tail: mean recall of the frequent, middle and rare third."
    if "miou" in names:
        yield "\nSamples are pixels; miou: mean intersection over union, over the classes that are there."
        yield from _iou_lines(folder)


def _iou_lines(folder: RunFolder) -> Iterator[str]:
    """The intersection over union of every class, under the global model."""
    found = [row for row in _rows(folder, "classes") if row["measure"] == "global" and row.get("iou")]
    names = (read_json(folder.place / "federation.json", Federation) or {}).get("class_names", [])
    last = [row for row in found if row["round"] == found[-1]["round"]]
    if last and names:
        said = ", ".join(f"{names[int(row['class'])]} {100 * float(row['iou']):.1f} %" for row in last)
        yield f"\nIoU by class of the global model, round {last[0]['round']}: {said}."


def _privacy_lines(summary: Mapping[str, Any], config: Tree) -> Iterator[str]:
    """What its privacy is worth; of a model that was tuned at the end, that it is worth nothing."""
    told = summary.get("privacy")
    if told is None and config.get("privacy", {}).get("name", "none") == "none":
        return
    yield "\n## Privacy\n"
    yield privacy_sentence(told) or "The run is not finished: what was spent is in its privacy.csv."
    if told and any("finish" in each for each in told["outside"]):
        yield "A model tuned on the client's data after the last round is outside the guarantee: keep it there."


def _rows(folder: RunFolder, table: str) -> Iterator[dict[str, str]]:
    path, (done, finished) = folder.place / f"{table}.csv", _reached(folder)
    if path.exists():
        rows = csv.DictReader(io.StringIO(path.read_text()))
        yield from (row for row in rows if int(row["round"]) <= done + finished)


def _tells(key: str, value: Any) -> bool:
    return value is not None and value != "" and not key.startswith(LEFT_OUT)


def _short(value: Any) -> Any:
    """A method or model from a file goes by the file's name, wherever it lay."""
    return value.rpartition("/")[2] if isinstance(value, str) and ".py:" in value else value


def _versions(folder: RunFolder) -> str:
    try:
        around: Mapping[str, Any] = json.loads((folder.place / "environment.json").read_text())
    except (OSError, ValueError):
        return "unknown versions"
    return ", ".join(f"{name} {around.get(name, '?')}" for name in ("polyfed", "python", "torch", "numpy"))
