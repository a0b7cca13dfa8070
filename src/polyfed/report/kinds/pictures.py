"""What methods see in the same test pictures: the picture, its true mask and every method's, side by side."""

import io
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from polyfed.data.colours import colours, palette
from polyfed.data.samples import VOID
from polyfed.engine.sample_masks import ANSWER, FOLDER, PICTURE, TRUTH
from polyfed.errors import DataError
from polyfed.files import Place
from polyfed.measure.metrics import accuracy, miou
from polyfed.report.charts import METHOD, Axis, Chart, Mosaic, Panel, drawn
from polyfed.report.kinds.words import one_of, titled
from polyfed.report.runs import Selection, Shown, by_row

NAME = re.compile(rf"(\d+)-({PICTURE}|{TRUTH}|{ANSWER})\.png")
CAPTION = (
    "Test pictures drawn by the seed, as they were trained on; each method's mask is its global model's after the last "
    "round (an oracle's where it has none and eval.oracle asked for it). Black has no label."
)
Files = dict[str, dict[str, np.ndarray]]  # what a run kept, by the number of the picture


def pictures(selection: Selection) -> Chart | None:
    """A line for each test picture, a column for each method, in a panel for each setting.

    All columns are of one seed, because other seeds draw other pictures: the smallest of those with most methods.
    """
    panels = []
    for setting, runs in selection.by_setting().items():
        kept = {run.path: files for run in runs if (files := samples(run))}
        seeds = Counter(run.seed for run in runs if run.path in kept)
        if seeds:
            seed = min(seeds, key=lambda seed: (-seeds[seed], seed))
            shown = [run for run in runs if run.path in kept and run.seed == seed]
            by_name = {row: kept[same[0].path] for row, same in by_row(shown).items()}
            panels.append(_panel(titled(one_of([*shown, *runs]), setting), by_name, _names(shown)))
    return drawn("pictures", "Test pictures and their masks", CAPTION, panels)


def samples(run: Shown) -> Files:
    """The pictures and masks that a run kept; nothing where it kept none."""
    place, found = Place(run.path) / FOLDER, Files()
    for match in filter(None, map(NAME.fullmatch, place.names())):
        found.setdefault(match[1], {})[match[2]] = _read(place / match[0], match[2] == PICTURE)
    return {number: files for number, files in found.items() if len(files) == len((PICTURE, TRUTH, ANSWER))}


def _read(file: Place, picture: bool) -> np.ndarray:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(file.read_bytes()), formats=["PNG"]) as image:
            return np.array(image.convert("RGB") if picture else image)
    except Exception as error:  # Pillow raises what its decoders raise
        raise DataError(f"the picture '{file}' cannot be read: {error}") from None


def _names(runs: Sequence[Shown]) -> list[str]:
    return [str(name) for run in runs[:1] for name in (run.federation or {}).get("class_names", ())]


def _panel(title: str, kept: dict[str, Files], names: list[str]) -> Panel:
    """One panel; a method that kept other pictures than the first has empty places."""
    first = next(iter(kept.values()))
    paint, empty = palette(names), np.zeros(0)
    tiles, rights = [], []
    for number, files in first.items():
        truth = files[TRUTH]
        answers = [one.get(number, {}).get(ANSWER, empty) for one in kept.values()]
        there = [answer if answer.shape == truth.shape else np.full_like(truth, VOID) for answer in answers]
        tiles.append([files[PICTURE], paint[truth], *(paint[answer] for answer in there)])
        rights.append([_scores(truth, answer, len(names)) for answer in there])
    columns = Axis("", METHOD, names=[PICTURE, TRUTH, *kept])
    lines = Axis("test picture", PICTURE, names=[str(int(number)) for number in first])
    key = {name: (int(r), int(g), int(b)) for name, (r, g, b) in zip(names, colours(names), strict=True)}
    return Panel(title, columns, lines, [Mosaic("", 0, tiles, rights, key)])


def _scores(truth: np.ndarray, answer: np.ndarray, classes: int) -> dict[str, float]:
    """How much of one picture a method has right."""
    known = truth < classes
    pairs = truth[known].astype(np.int64) * classes + np.minimum(answer[known], classes - 1)
    counts = np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)
    return {"pixAcc": accuracy(counts), "mIoU": miou(counts)}
