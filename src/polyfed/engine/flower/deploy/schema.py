"""What a site's data look like, as it says in its hello, and the federation that server and site build from it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

import numpy as np
import torch

from polyfed.config import Config
from polyfed.data.federation import Federation
from polyfed.data.samples import VOID
from polyfed.data.sources.base import AtSites, Dataset
from polyfed.data.sources.raw import pixel_levels, statistics_of
from polyfed.data.split import Split, split_alone
from polyfed.engine.flower.deploy.layout import Site
from polyfed.engine.work import CPU, device_of, side_of
from polyfed.errors import DataError, UsageError

VERSIONS = ("polyfed", "torch", "numpy", "flwr")
COUNTS = {"train": "counts", "test": "test_counts", "val": "val_counts"}  # the keys of a hello with class counts
FIXED = ("n", "tests", "vals", *COUNTS.values(), "disclosed")  # of its data, beside the schema
FIXED += ("classes", "shape", "kind", "masks", "columns", "levels")
HALF = 127.5  # mean and spread of pixels where no site discloses its own


@dataclass(frozen=True)
class Schema:
    """Classes and sample shape of a site, and how its pixels are spread."""

    classes: tuple[str, ...]
    shape: tuple[int, ...]  # as stored: images are [H, W, C]
    kind: str  # uint8 images or float32
    levels: np.ndarray | None  # [channel, value], of images where it is told
    versions: tuple[str, ...]
    masks: bool = False  # whether every pixel has a label of its own
    columns: tuple[str, ...] = ()  # of numbers, where tables name them

    def to_record(self) -> dict[str, Any]:
        """The schema as a record holds it."""
        told = [] if self.levels is None else self.levels.ravel().tolist()
        plain: dict[str, Any] = {"classes": list(self.classes), "shape": list(self.shape), "kind": self.kind}
        plain |= {"masks": self.masks, "columns": list(self.columns)}
        return {**plain, "levels": told, "versions": list(self.versions)}

    @staticmethod
    def from_record(said: Mapping[str, Any]) -> "Schema":
        """The schema in a record; the inverse of `to_record`."""
        levels = np.array(said["levels"], np.int64).reshape(-1, 256) if said["levels"] else None
        shape, versions = tuple(map(int, said["shape"])), tuple(map(str, said["versions"]))
        masks, columns = bool(said.get("masks", False)), tuple(map(str, said.get("columns", ())))
        return Schema(tuple(map(str, said["classes"])), shape, str(said["kind"]), levels, versions, masks, columns)


def versions() -> tuple[str, ...]:
    """What must be the same everywhere."""
    return tuple(f"{package} {metadata.version(package)}" for package in VERSIONS)


def schema_of(dataset: Dataset, disclose: str) -> Schema:
    """What a site's samples look like."""
    levels = pixel_levels(dataset.x) if dataset.images and disclose == "counts" else None
    shape, kind = dataset.x.shape[1:], str(dataset.x.dtype)
    return Schema(dataset.class_names, shape, kind, levels, versions(), dataset.masks, dataset.columns)


def agreed(said: Mapping[str, Schema]) -> Schema:
    """The schema that all sites share, with their pixels taken together; sites that differ are refused by name."""
    first, *others = said
    one = said[first]
    for name in others:
        other = said[name]
        for what, mine, theirs in (
            ("samples", (one.kind, one.shape), (other.kind, other.shape)),
            ("classes", one.classes, other.classes),
            ("labels", one.masks, other.masks),
            ("versions", one.versions, other.versions),
        ):
            if mine != theirs:
                raise DataError(_difference(what, first, mine, name, theirs))
    _check_columns(said)
    told = [schema.levels for schema in said.values() if schema.levels is not None]
    return replace(one, levels=np.sum(told, axis=0) if len(told) == len(said) else None)


def _check_columns(said: Mapping[str, Schema]) -> None:
    """Refuse tables whose columns differ: a number is taken by its place, and an age would be a dose elsewhere."""
    named = {name: ", ".join(schema.columns) for name, schema in said.items() if schema.columns}
    first = next(iter(named), "")
    for name, columns in named.items():
        if columns != named[first]:
            here, there = (f"those of '{who}' are {named[who][:200]}" for who in (first, name))
            cure = "data.name=manifest with data.features names those that all have, in one order"
            raise DataError(f"the columns of the sites' tables differ: {here}, {there}; {cure}")


def _difference(what: str, first: str, mine: Any, name: str, theirs: Any) -> str:
    if what == "samples":
        here, there = (f"{kind} {list(shape)}" for kind, shape in (mine, theirs))
        return f"the sites' samples differ: those of '{first}' are {here}, those of '{name}' {there}"
    if what == "labels":
        here, there = ("masks" if masks else "one for each sample" for masks in (mine, theirs))
        return f"the sites' labels differ: those of '{first}' are {here}, those of '{name}' {there}"
    only = [word for word in (*mine, *theirs) if (word in mine) != (word in theirs)]
    cure = "; data.classes in the config fixes them for all" if what == "classes" else "; install the same everywhere"
    return f"the sites' {what} differ: '{first}' and '{name}' do not both have {', '.join(only[:5])}{cure}"


def statistics(schema: Schema) -> dict[str, list[float]]:
    """Mean and spread of the channels, the same for everybody; nothing where samples are no images."""
    if schema.kind != "uint8":
        return {}
    if schema.levels is None:
        channels = schema.shape[-1]
        return {"mean": [HALF] * channels, "std": [HALF] * channels}
    mean, std = statistics_of(schema.levels)
    return {"mean": list(mean), "std": list(std)}


def refuse_attack(config: Config) -> None:
    """Refuse an attack: no real site is asked to attack the others."""
    if config.attack.name != "none":
        raise UsageError("attack is for simulation; real sites have no attack section")


def own_data(config: Config, site: Site) -> Dataset:
    """A site's samples."""
    refuse_attack(config)
    source = config.data
    if not isinstance(source, AtSites):
        fitting = "data.name must be folder, manifest or text"
        raise UsageError(f"a site has its samples in a folder of its own: {fitting}, not '{source.name}'")
    if source.limit is not None:
        raise UsageError("data.limit needs the samples of all sites; a federation takes them as they are")
    if source.corrupt != "none":
        raise UsageError("data.corrupt is for simulations; a federation takes the sites' samples as they are")
    return replace(source.of_one(site.data), apart=True)


def own_federation(config: Config, dataset: Dataset, name: str, order: Mapping[str, Any]) -> Federation:
    """The federation as a site sees it: everybody by name, and its own samples."""
    names = tuple(order["sites"])
    if "mean" in order:
        dataset = replace(dataset, mean=tuple(order["mean"]), std=tuple(order["std"]))
    split = split_alone(dataset, config.split, config.seed, names.index(name), names)
    return _federation(config, dataset, split, device_of(config.device))


def server_federation(config: Config, schema: Schema, names: tuple[str, ...]) -> Federation:
    """The federation as the server sees it: everybody by name, and no sample; one blank row carries the shape."""
    blank = np.zeros((1, *schema.shape), schema.kind)
    labels = np.full(blank.shape[:3], VOID, np.uint8) if schema.masks else np.zeros(1, np.int64)
    declared = getattr(config.data, "sizes", ())  # of categories
    dataset = Dataset(config.data.name, blank, labels, 1, schema.classes, categories=declared)
    nothing = tuple(np.arange(0) for _ in names)
    heldout = split_alone(dataset, config.split, config.seed, 0, names).heldout
    split = Split(nothing, nothing, nothing, nothing[0], heldout, names, False, {})
    return _federation(config, dataset, split, CPU)


def _federation(config: Config, dataset: Dataset, split: Split, device: torch.device) -> Federation:
    wanted = None if config.data.size == "auto" else config.data.size
    side = side_of(config, dataset)
    return Federation(dataset, split, wanted if side is None else side, config.data.augment, device)
