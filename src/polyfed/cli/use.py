"""`polyfed export`, `predict`, `audit` and `view`: using what was trained, looking at what was run."""

import contextlib
import csv
import io
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyfed.cli.common import Json, Quiet, Trust
from polyfed.errors import DataError, UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from polyfed.api import Result
    from polyfed.data.inputs import Inputs
    from polyfed.use.predictor import Predictor

Client = Annotated[
    str | None, typer.Option("--client", help="The client whose model it is: its name or id.", show_default=False)
]
Global = Annotated[bool, typer.Option("--global", help="The model that answers for all.")]


def export(
    path: Annotated[Path, typer.Argument(metavar="RUN", show_default=False)],
    client: Client = None,
    everybody: Global = False,
    form: Annotated[str, typer.Option("--format", help="safetensors, onnx or torch-export.")] = "safetensors",
    out: Annotated[Path | None, typer.Option("--out", help="A new directory; by default one in the run.")] = None,
    trust: Trust = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a run's model as a directory to ship: weights or graph, card, classes, preprocessing."""
    need_one(client, everybody)
    made = _run_at(path).export(form, client, out, trust)
    text = json.dumps({"export": str(made), "format": form}) if as_json else f"{made}: see {made / 'card.md'}"
    sys.stdout.write(text + "\n")


def predict(
    path: Annotated[Path, typer.Argument(metavar="DIR|RUN", show_default=False, help="A run, an export or a site.")],
    given: Annotated[Path, typer.Option("--input", help=".npy, .npz (x), .csv, a picture or a folder of them.")],
    client: Client = None,
    everybody: Global = False,
    site: Annotated[str | None, typer.Option("--site", help="A site's name.", show_default=False)] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="A CSV file, or a folder for masks; by default stdout.")
    ] = None,
    trust: Trust = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """What a model says of new samples: one line each, the class and its probability."""
    predictor = _predictor(path, client, everybody, site, trust)
    from polyfed.data.inputs import read_inputs

    inputs = read_inputs(given, predictor.preparation)
    if not quiet:
        _remark(inputs, given)
    logits, names = predictor.logits(inputs.x), predictor.class_names
    if logits.dim() > 2:
        _say_masks(logits, inputs, given, names, out, as_json)
        return
    from polyfed.use.predictor import chances_of

    chances = chances_of(logits)
    rows = [
        {inputs.kind: name, "class": c, "name": names[c], "probability": round(float(chance[c]), 6)}
        for name, chance, c in zip(inputs.names, chances, chances.argmax(1).tolist(), strict=True)
    ]
    text = json.dumps(rows, indent=1) + "\n" if as_json else _as_csv(rows)
    if out is None:
        sys.stdout.write(text)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write to '{out}': {error.strerror}") from None


NOTES = {
    "texts_cut": "texts in '{}' are longer than the model's texts and are cut",
    "texts_empty": "texts in '{}' hold no word",
    "unseen_categories": "words in '{}' are no category the model knows, and count as unknown",
    "missing_categories": "categories are missing in '{}', and count as unknown",
}


def _remark(inputs: "Inputs", given: Path) -> None:
    """Say what of the inputs was left out, cut or not known."""
    if inputs.skipped:
        sys.stderr.write(f"polyfed: {inputs.skipped} files in '{given}' are no pictures and are left out\n")
    for note, count in inputs.notes.items():
        sys.stderr.write(f"polyfed: {count} {NOTES[note].format(given)}\n")


def audit(
    path: Annotated[Path, typer.Argument(metavar="RUN", show_default=False)],
    client: Annotated[int, typer.Option("--client", help="The client whose upload is read.")],
    images: Annotated[int, typer.Option("--images", help="Samples in the one step that is read.", min=1)] = 1,
    steps: Annotated[int, typer.Option("--steps", help="How long images are searched for.", min=1)] = 500,
    fresh: Annotated[bool, typer.Option("--fresh", help="The first round, before anybody has trained.")] = False,
    tv: Annotated[float, typer.Option("--tv", help="How strongly smooth images are preferred.", min=0)] = 0.01,
    trust: Trust = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """What a curious server reads from one upload of a client: labels and images, written to RUN/audit."""
    told = _run_at(path).audit(client, images, steps, fresh, tv, trust)
    sys.stdout.write((json.dumps(told, indent=1) if as_json else _leaks(path, told)) + "\n")


def _leaks(path: Path, told: dict[str, Any]) -> str:
    """The numbers of an audit for people."""
    if "note" in told:
        return told["note"]
    lines = [f"client {told['client']}, round {told['round']}, method {told['method']}; personal: {told['personal']}"]
    for name, which in (("one_step", "one step on one batch"), ("usual", "a usual upload")):
        leak = told[name]
        hits = leak["labels"] if isinstance(leak["labels"], str) else f"{leak['label_hits']} of {told['images']}"
        decibels = ", ".join(f"{each:.1f}" for each in leak["psnr"])
        lines.append(f"{which}: labels {hits}; PSNR {decibels} dB")
    lines.append(f"a grey image: PSNR {', '.join(f'{each:.1f}' for each in told['grey_psnr'])} dB")
    return "\n".join([*lines, f"pictures and numbers: {path / 'audit'}"])


def _say_masks(
    logits: "Tensor", inputs: "Inputs", given: Path, names: tuple[str, ...], out: Path | None, as_json: bool
) -> None:
    """What a model says pixel by pixel: pictures in a folder, or the share of every class."""
    from polyfed.use.mask_files import masks_of, shares, write_masks

    masks = masks_of(logits, inputs, given)
    if out is not None:
        write_masks(out, masks, inputs, given, names)
    if out is None or as_json:
        rows = shares(masks, inputs, names)
        sys.stdout.write(json.dumps(rows, indent=1) + "\n" if as_json else _as_csv(rows))


def view(
    path: Annotated[Path | None, typer.Argument(metavar="[DIR]", show_default=False)] = None,
    host: Annotated[str, typer.Option(help="Where to listen; only this machine by default.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.", min=0, max=65535)] = 8420,
    allow_remote: Annotated[bool, typer.Option("--allow-remote", help="Let other machines read it too.")] = False,
) -> None:
    """A local page over the runs and comparisons below a directory; it follows live ones and writes nothing."""
    from polyfed.report.view.server import View

    with View(path or Path(os.environ.get("POLYFED_OUT") or "runs"), host, port, allow_remote) as page:
        sys.stdout.write(f"{page.url} shows '{page.listing.root}'; Ctrl-C ends it\n")
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            page.serve_forever()


def _predictor(path: Path, client: str | None, everybody: bool, site: str | None, trust: bool) -> "Predictor":
    """What answers: of an exported model, a site, or a run."""
    from polyfed.use.export import is_export, read

    chosen = client is not None or everybody
    if not path.is_dir():
        raise DataError(f"there is no folder '{path}'")
    if is_export(path):
        if chosen or site is not None:
            raise UsageError(f"'{path}' is one exported model: leave out --client, --global and --site")
        return read(path, trust)
    if site is not None or (path / "site.yaml").is_file():
        if chosen:
            raise UsageError("a site has one model, its own: leave out --client and --global")
        from polyfed.engine.flower import need_flower
        from polyfed.engine.flower.deploy import layout

        found = layout.Site.at(path, site)
        need_flower()
        from polyfed.use.site import site_predictor

        return site_predictor(found)
    if (path / "sites").is_dir():
        raise UsageError(f"'{path}' is a federation: say which site's model with --site NAME")
    need_one(client, everybody)
    result = _run_at(path)
    return result.global_model(trust) if client is None else result.client(client, trust)


def _run_at(path: Path) -> "Result":
    from polyfed.api import Result, load

    found = load(path)
    if not isinstance(found, Result):
        raise UsageError(f"'{path}' is a comparison: name one of the runs in it")
    return found


def need_one(client: str | None, everybody: bool) -> None:
    """Whose model is meant must be said, once."""
    if (client is not None) == everybody:
        raise UsageError("say whose model: --client NAME or --global")


def _as_csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    last = list(rows[0])[-1]  # a probability, or a share
    writer.writerows({**row, last: f"{row[last]:.6f}"} for row in rows)
    return text.getvalue()
