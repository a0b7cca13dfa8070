"""The clients' data: per client train, validation and test, plus a global test set, all views of one pool."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal, overload

import numpy as np
import torch
from torch import Tensor

from polyfed.data.augment import Augmenter, augmenter
from polyfed.data.corrupt import Corruption, corrupt_rows
from polyfed.data.preparation import Preparation, filled, per_channel
from polyfed.data.samples import BACKGROUND, VOID, Pool, Samples
from polyfed.data.sources.base import Dataset, Source, load_cached
from polyfed.data.sources.masks import resized_masks
from polyfed.data.sources.raw import Side, channel_statistics, pixel_statistics, resized, sides
from polyfed.data.split import Options, Split, split_dataset
from polyfed.data.strata import Indices
from polyfed.errors import UsageError
from polyfed.rng import generator

__all__ = ["ClientData", "Federation", "Options", "Split", "federation", "split_dataset"]

CLEAN = Corruption("none")
RECENT = 256  # how many clients that were made are kept


def federation(
    source: Source, options: Options, seed: int, size: Side | None = None, device: torch.device | str | None = None
) -> "Federation":
    """Load a source, split it, and put it into one pool; images are resized if `size` (or else data.size) says so."""
    wanted = None if source.size == "auto" else source.size
    return divided(load_cached(source), source, options, seed, wanted if size is None else size, device)


def divided(
    dataset: Dataset,
    source: Source,
    options: Options,
    seed: int,
    side: Side | None = None,
    device: torch.device | str | None = None,
) -> "Federation":
    """The federation of samples that are loaded already."""
    if dataset.masks and options.partition.by == "users":
        dataset = replace(dataset, apart=True)  # a site that has its own samples alone divides them in the same way
    split = split_dataset(dataset, options, seed, source.limit)
    wish = Corruption(source.corrupt, source.corrupt_severity, source.corrupt_by, source.corrupt_on)
    if not wish.idle and source.reader() is not None:
        raise UsageError("data.corrupt changes samples once, and data.live=true reads them anew: choose one of them")
    background, key = getattr(source, "background", "merged"), seed if options.seed is None else options.seed
    return Federation(dataset, split, side, source.augment, device, wish, key, background=background)


@dataclass(frozen=True, eq=False)
class ClientData:
    """What one client holds, as views of the pool."""

    id: int
    name: str
    train: Samples
    val: Samples
    test: Samples
    classes: int

    @cached_property
    def counts(self) -> Tensor:
        """How many training samples of every class it has."""
        return self.counts_of("train")

    def counts_of(self, which: Literal["train", "val", "test"]) -> Tensor:
        """How many of these samples there are of every class; of masks, how many pixels of each it owns."""
        return class_counts(getattr(self, which), self.classes)


def class_counts(samples: Samples, classes: int) -> Tensor:
    """How many samples there are of every class; of masks, how many pixels, without those that are of none."""
    return torch.bincount(samples.y.flatten(), minlength=classes)[:classes]


class Clients(Sequence[ClientData]):
    """Clients by id, made when asked for: ten thousand of them take no memory, and no time to fork."""

    def __init__(self, make: Callable[[int], ClientData], count: int):
        self._make, self._ids = lru_cache(RECENT)(make), range(count)

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, index: int) -> ClientData: ...
    @overload
    def __getitem__(self, index: slice) -> list[ClientData]: ...
    def __getitem__(self, index: int | slice) -> ClientData | list[ClientData]:
        if isinstance(index, slice):
            return [self._make(k) for k in self._ids[index]]
        return self._make(self._ids[index])


class Federation:
    """All clients and the global test set of one data set under one split."""

    def __init__(
        self,
        dataset: Dataset,
        split: Split,
        side: Side | None = None,
        augment: str = "none",
        device: torch.device | str | None = None,
        corruption: Corruption = CLEAN,
        seed: int = 0,
        background: str = "merged",
    ):
        for key, value, given in (
            ("size", side, side is not None),
            ("augment", augment, augment != "none"),
            ("corrupt", corruption.kind, corruption.kind != "none"),
        ):
            if given and not dataset.images:
                raise UsageError(f"data.{key}={value} is for images, and {dataset.name} holds none")
        self.dataset, self.split, self.notes = _scaled(dataset, split), split, dict(split.notes)
        self.side: Side | None = None  # what images were resized to
        self.background = background
        self._check_background()
        self.as_trained = self._as_trained(side, corruption, seed)
        pool = as_pool(self.as_trained)
        self.pool = pool if device is None else pool.to(torch.device(device))
        self._augment = augment

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return self.dataset.classes

    @property
    def outputs(self) -> int:
        """How many classes a model tells apart: one more where the background is a class of its own."""
        return self.classes + int(self.background == "class" and bool(self.split.owned))

    @property
    def class_names(self) -> tuple[str, ...]:
        """What they are called."""
        return self.dataset.class_names

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a sample, channels first."""
        return tuple(self.pool.x.shape[1:])

    @cached_property
    def clients(self) -> Clients:
        """Everyone, by id."""
        return Clients(self._client, len(self.split))

    @property
    def heldout(self) -> tuple[int, ...]:
        """Ids of the clients that never train."""
        return self.split.heldout

    @cached_property
    def participants(self) -> tuple[int, ...]:
        """Ids of the clients that may train."""
        return tuple(sorted(set(range(len(self.split))) - set(self.heldout)))

    @cached_property
    def global_test(self) -> Samples:
        """What a global model is tested on."""
        return self.view(self.split.global_test)

    @cached_property
    def public(self) -> Samples:
        """What the server may learn from: samples that were taken out of the global test set."""
        return self.view(self.split.public)

    @cached_property
    def augment(self) -> Augmenter | None:
        """The random changes for prepared training batches: augment(x, generator)."""
        mean, std = (per_channel(v, 2) for v in (self.dataset.mean, self.dataset.std))
        return augmenter(self._augment, None if mean is None or std is None else -mean / std)

    @property
    def masks(self) -> bool:
        """Whether every pixel has a label of its own."""
        return self.dataset.masks

    def view(self, rows: Indices) -> Samples:
        """These rows of the pool."""
        return Samples(self.pool, torch.from_numpy(rows).to(self.pool.y.device))

    def _as_trained(self, side: Side | None, corruption: Corruption, seed: int) -> Dataset:
        """Its samples already resized, corrupted and filled: from these another process makes the same federation."""
        made, split = self.dataset, self.split
        if side is not None and made.x.shape[1:3] != sides(side):
            made = _resized(made, side)
            self.side, self.notes["resized"] = side, max(sides(side))
        if not corruption.idle and not made.corrupted:
            x, self.notes["corrupted"] = corrupt_rows(made.x, split, corruption, seed)
            made = replace(made, x=x, corrupted=True)
        if made.incomplete:
            others = [np.concatenate(some) for some in zip(split.val, split.test, strict=True)]
            made = replace(made, x=filled(made.x, split.train, others))
        return made

    def _check_background(self) -> None:
        for client, owned in enumerate(self.split.owned if self.background == "ignore" else ()):
            if len(owned) < 2:
                cure = "set split.beta=2 or data.background=merged"
                raise UsageError(f"data.background=ignore leaves client {client} one class: {cure}")

    def _owner(self, client: int) -> dict[str, Tensor]:
        """How a client that does not own all classes reads masks: the others are background, or have no label.

        A background that is merged has a code and the classes behind it, for the loss; one that is a class is the
        last, which no test mask holds.
        """
        if not self.split.owned:
            return {}
        owned = torch.from_numpy(self.split.owned[client])
        table = torch.arange(256, dtype=torch.uint8)
        others = {"merged": BACKGROUND, "ignore": VOID, "class": self.classes}
        table[: self.classes] = others[self.background]
        table[owned] = owned.to(torch.uint8)
        device = self.pool.y.device
        read = {"table": table.to(device)}
        return read | {"owned": owned.to(device)} if self.background == "merged" else read

    @property
    def preparation(self) -> Preparation:
        """How new raw samples, shaped and scaled like this federation's source, become what a model eats."""
        data = self.dataset
        kind: Literal["uint8", "int64", "float32"] = "uint8" if data.images else "int64" if data.tokens else "float32"
        scales = {"mean": data.mean, "std": data.std}
        return Preparation(dtype=kind, shape=data.x.shape[1:], resize=self.side, reads=data.reads, **scales)

    def class_sample(self, per_class: int, seed: int) -> Samples:
        """Random samples of the global test set, equally many of each class as far as there are any."""
        rows, draw = self.split.global_test, generator(seed, "classes")
        labels = self.dataset.labels[rows]
        drawn = [draw.permutation(np.flatnonzero(labels == c))[:per_class] for c in range(self.classes)]
        return self.view(rows[np.sort(np.concatenate(drawn))])

    def describe(self) -> dict[str, Any]:
        """The split as plain data.

        `counts` are a client's training samples per class; total, imbalance_factor (largest over smallest class) and
        mean_distance (total variation between a client's label distribution and the federation's, mean over clients)
        are over all a client was given: train, validation and held-out test.
        """
        held = np.stack([self._held_counts(k) for k in range(len(self.split))])
        present = held.sum(axis=0)
        apart = np.abs(held / held.sum(axis=1, keepdims=True) - present / present.sum()).sum(axis=1) / 2
        return {
            "total": int(held.sum()),
            "classes": self.classes,
            "global_test": len(self.split.global_test),
            "clients": [_row(client) for client in self.clients],
            "imbalance_factor": float(present.max() / present[present > 0].min()),
            "mean_distance": float(apart.mean()),
            "notes": dict(self.notes),
        }

    def _client(self, k: int) -> ClientData:
        parts, owner = (self.split.train, self.split.val, self.split.test), self._owner(k)
        train, val, test = (replace(self.view(part[k]), **owner) for part in parts)  # type: ignore[arg-type]
        return ClientData(k, self.split.names[k], train, val, test, self.classes)

    def _held_counts(self, k: int) -> np.ndarray:
        return np.bincount(self.dataset.labels[self.split.held(k)], minlength=self.classes)


def _row(client: ClientData) -> dict[str, Any]:
    sizes = {"train": len(client.train), "val": len(client.val), "test": len(client.test)}
    return {"id": client.id, "name": client.name, **sizes, "counts": client.counts.tolist()}


def _scaled(dataset: Dataset, split: Split) -> Dataset:
    """With the mean and std of all clients' training rows, where the source leaves them to the split."""
    if not dataset.unscaled:
        return dataset
    rows = np.sort(np.concatenate(split.train))
    mean, std = pixel_statistics(dataset.x[rows]) if dataset.images else channel_statistics(dataset.x[rows])
    ids = len(dataset.categories)  # the first columns of a table, which stay what they are
    mean, std = (*[0.0] * ids, *mean[ids:]), (*[1.0] * ids, *std[ids:])
    return replace(dataset, mean=mean, std=std, unscaled=False)


def _resized(dataset: Dataset, side: Side) -> Dataset:
    """Images at another size; masks go with them, and remember how many pixels of each class a split went by."""
    x = resized(dataset.x, side)
    if not dataset.masks:
        return replace(dataset, x=x)
    return replace(dataset, x=x, y=resized_masks(dataset.y, side), pixels=dataset.class_pixels)


def as_pool(dataset: Dataset) -> Pool:
    """Samples as tensors: channels first to the eye, channels last in memory for images."""
    tensor = torch.from_numpy(dataset.x)
    if dataset.images:
        tensor = tensor.permute(0, 3, 1, 2)
    mean, std = (_spread(per_channel(v, tensor.dim()), tensor) for v in (dataset.mean, dataset.std))
    return Pool(tensor, torch.from_numpy(dataset.y.copy()), mean, std)


def _spread(values: Tensor | None, samples: Tensor) -> Tensor | None:
    """Numbers per channel as one whole sample, in its order in memory: arithmetic with it runs ten times faster."""
    if values is None or not len(samples):
        return values
    return torch.empty_like(samples[0], dtype=torch.float32).copy_(values)
