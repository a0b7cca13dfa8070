"""Where networks look in corrupted pictures, trained with BAVD and without (MuPFL, Figure 4).

The pictures are test images under our own corruptions, or, where `published` names a folder beside the data, those of
ImageNet-C: FOLDER/KIND/SEVERITY/CLASS/*.JPEG with the classes of tiny-ImageNet, whose ids are ImageNet's.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from polyfed.config import make_config
from polyfed.data.corrupt import corrupted
from polyfed.data.federation import Federation
from polyfed.data.sources.base import find
from polyfed.data.sources.folder import files_in
from polyfed.data.sources.pictures import IMAGES, read_coloured
from polyfed.engine.rounds import Run
from polyfed.errors import DataError
from polyfed.methods.presets import MuPFLPaper
from polyfed.models.base import Net
from polyfed.papers.demos import Demo, ExperimentKeys, demo
from polyfed.papers.within import runs_of
from polyfed.report.kinds.maps import activation_maps
from polyfed.rng import generator
from polyfed.use.replay import restored

USED = (MuPFLPaper,)  # its sources count for what is stored
METHODS = {"FedAvg": "fedavg", "with BAVD": {"name": "mupfl-paper", "acmu": False, "pkcf": False}}
PIXELS, CELLS = 28, 12  # of a side of a picture and of a map that are kept: a stored cell has to stay small


class Keys(ExperimentKeys):
    """The experiment, the kinds of corruption and how bad they are, and how many test images are looked at."""

    tiny = {**ExperimentKeys.tiny, "images": 10}
    models = len(METHODS)
    kinds: tuple[str, ...] = ("gaussian_noise", "snow", "impulse_noise")
    severity: int = Field(3, ge=1, le=5)
    images: int = Field(500, ge=3)
    published: str = ""


@demo("attention", Keys)
def attention(seed: int, keys: Keys) -> Demo:
    """Accuracy on the pictures, how much of the attention to the clean ones is kept, and an example of each kind."""
    numbers: dict[str, dict[str, float]] = {}
    arrays: dict[str, np.ndarray] = {}
    with runs_of(keys.experiment, METHODS, seed) as folders:
        runs = {name: restored(make_config(folder.tree()), folder, None) for name, folder in folders.items()}
        data = next(iter(runs.values())).world.federation
        sets = dict(_pictures(data, keys, seed))
        for name, run in runs.items():
            numbers[name], maps = _looked(_net(run), data, sets)
            for place, kind in enumerate(keys.kinds):
                arrays[f"{kind}: {name}"] = _small(maps[kind][place], CELLS)
        for place, kind in enumerate(keys.kinds):
            pixels = torch.from_numpy(sets[kind][0][place].astype(np.float32) / 255)
            arrays[f"{kind}: picture"] = _small(pixels.mean(2), PIXELS)
    return Demo(numbers, arrays)


def _net(run: Run) -> Net:
    model = run.method.global_predictor(run.server)
    assert isinstance(model, Net)
    return model


Pictures = tuple[np.ndarray, np.ndarray]  # uint8 [N, H, W, C], classes [N]


def _pictures(data: Federation, keys: Keys, seed: int) -> Iterator[tuple[str, Pictures]]:
    """The pictures of every kind; the same test images under each of ours, and first as they are."""
    if keys.published:
        yield from _published(data, keys)
        return
    rows = generator(seed, "pictures").permutation(data.split.global_test)[: keys.images]
    clean, y = data.dataset.x[rows], data.dataset.y[rows]
    yield "clean", (clean, y)
    for kind in keys.kinds:
        made = [
            corrupted(x, kind, keys.severity, generator(seed, kind, int(row)))
            for x, row in zip(clean, rows, strict=True)
        ]
        yield kind, (np.stack(made), y)


def _published(data: Federation, keys: Keys) -> Iterator[tuple[str, Pictures]]:
    source = make_config(keys.experiment).data
    ids = find(source.name, [source.home() / "tiny-imagenet-200", source.home()], "wnids.txt").read_text().split()
    side = data.shape[1]
    for kind in keys.kinds:
        top = source.home().parent / keys.published / kind / str(keys.severity)
        files = _some_of_each_class(top, ids, keys.images)
        yield kind, (read_coloured(keys.published, list(files), side), np.array(list(files.values())))


def _some_of_each_class(top: Path, ids: Sequence[str], most: int) -> dict[Path, int]:
    """Files with their classes, the first of every class, then the second, and so on."""
    by_class = [files_in(top / name, IMAGES)[0] if (top / name).is_dir() else [] for name in ids]
    longest = max(map(len, by_class), default=0)
    found = {files[turn]: c for turn in range(longest) for c, files in enumerate(by_class) if turn < len(files)}
    if not found:
        raise DataError(f"'{top}' holds no pictures of the classes that were trained on")
    return dict(list(found.items())[:most])


def _looked(net: Net, data: Federation, sets: Mapping[str, Pictures]) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Accuracy by kind, and the cosine of the maps with those of the clean pictures where these are known."""
    numbers: dict[str, float] = {}
    maps: dict[str, Tensor] = {}
    for kind, (pictures, labels) in sets.items():
        x, y = data.preparation.tensor(pictures, None), torch.from_numpy(labels).long()
        with torch.no_grad():
            numbers[f"accuracy, {kind}"] = 100 * float((net.eval()(x).argmax(1) == y).float().mean())
        maps[kind] = activation_maps(net, x, y)
    if "clean" in maps:
        before = maps.pop("clean").flatten(1)
        kept = [F.cosine_similarity(after.flatten(1), before).mean() for after in maps.values()]
        numbers["attention kept"] = 100 * float(torch.stack(kept).mean())
    numbers["accuracy, corrupted"] = float(np.mean([numbers[f"accuracy, {kind}"] for kind in maps]))
    return numbers, maps


def _small(values: Tensor, most: int) -> np.ndarray:
    """At most so large, in steps of a hundredth."""
    if max(values.shape) > most:
        values = F.adaptive_avg_pool2d(values[None], (most, most))[0]
    return np.round(values.numpy().astype(float), 2)
