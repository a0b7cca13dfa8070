"""What a model says of pictures pixel by pixel, as files: palette masks, overlays, and the share of every class."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from polyfed.data.colours import colours, mask_png
from polyfed.data.inputs import Inputs
from polyfed.data.sources.pictures import read_image
from polyfed.data.sources.raw import in_colour
from polyfed.errors import RunFailed, UsageError
from polyfed.models.base import spread

Row = dict[str, Any]


def masks_of(logits: Tensor, inputs: Inputs, given: Path) -> list[np.ndarray]:
    """The class of every pixel, at each picture's own size: logits are spread first."""
    if not bool(logits.isfinite().all()):
        raise RunFailed("the model gives some pixels no class: its logits are not finite")
    made = []
    for row, each in enumerate(logits):
        size = _picture(inputs, given, row).shape[:2]
        made.append(spread(each[None], size)[0].argmax(0).numpy().astype(np.uint8))
    return made


def shares(masks: Sequence[np.ndarray], inputs: Inputs, class_names: Sequence[str]) -> list[Row]:
    """Which part of every picture is of every class."""
    rows = []
    for name, mask in zip(inputs.names, masks, strict=True):
        counts = np.bincount(mask.ravel(), minlength=len(class_names))
        for c, count in enumerate(counts.tolist()):
            share = round(count / mask.size, 6)
            rows.append({inputs.kind: name, "class": c, "name": class_names[c], "share": share})
    return rows


def write_masks(
    out: Path, masks: Sequence[np.ndarray], inputs: Inputs, given: Path, class_names: tuple[str, ...]
) -> None:
    """NAME.png with pixel values that are classes, NAME_overlay.png with their colours, and shares.csv."""
    from PIL import Image

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"'{out}' exists and is not empty; masks never overwrite: give another --out")
    files, palette = _files_of(inputs.names), colours(class_names)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for row, ((plain, overlay), mask) in enumerate(zip(files, masks, strict=True)):
            picture = in_colour(_picture(inputs, given, row)[None], 3)[0]
            (out / plain).write_bytes(mask_png(mask, class_names))
            half = (picture.astype(np.uint16) + palette[mask] + 1) // 2
            Image.fromarray(half.astype(np.uint8)).save(out / overlay)
        with (out / "shares.csv").open("w", encoding="utf-8", newline="") as file:
            rows = shares(masks, inputs, class_names)
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        raise UsageError(f"cannot write to '{out}': {error.strerror or error}") from None


def _files_of(names: Sequence[str]) -> list[tuple[str, str]]:
    """What the mask and the overlay of each picture are called; two pictures that share a name are refused."""
    made, taken = [], dict[str, str]()
    for name in names:
        pair = (f"{Path(name).stem}.png", f"{Path(name).stem}_overlay.png")
        for file in pair:
            if file in taken:
                raise UsageError(f"the answers to '{taken[file]}' and '{name}' would both be called {file}: rename one")
            taken[file] = name
        made.append(pair)
    return made


def _picture(inputs: Inputs, given: Path, row: int) -> np.ndarray:
    """A picture at its own size."""
    if inputs.kind != "file":
        return inputs.x[row]
    return read_image(given / inputs.names[row] if given.is_dir() else given, None)
