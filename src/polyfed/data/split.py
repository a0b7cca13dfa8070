"""Long tail, then partition, then local train and test: index arrays, a pure function of labels and a seed."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from polyfed.data.longtail import limited, long_tail
from polyfed.data.partition import Parted, Partition, noted
from polyfed.data.sources.base import Dataset
from polyfed.data.strata import Indices, deal, hold_out, pick, shares
from polyfed.errors import UsageError
from polyfed.rng import generator


class Options(Protocol):
    """What the config says about a split; `clients` may be None where the data decide (users)."""

    @property
    def partition(self) -> Any: ...  # a Partition; `config`, which stands above this room, knows it as a Spec
    @property
    def clients(self) -> int | None: ...
    @property
    def longtail(self) -> float: ...
    @property
    def test(self) -> float | Literal["mirror", "none"]: ...
    @property
    def val(self) -> float: ...
    @property
    def heldout(self) -> int: ...
    @property
    def public(self) -> int: ...
    @property
    def seed(self) -> int | None: ...


@dataclass(frozen=True, eq=False)
class Split:
    """Who holds which rows of the pool. Where tests are `mirrored`, they come from the official test part."""

    train: tuple[Indices, ...]
    val: tuple[Indices, ...]
    test: tuple[Indices, ...]
    global_test: Indices
    heldout: tuple[int, ...]
    names: tuple[str, ...]
    mirrored: bool
    notes: dict[str, int]
    public: Indices = field(default_factory=lambda: np.arange(0))  # the server's own, in nobody's test set
    owned: tuple[Indices, ...] = ()  # of masks: every client's classes; none told: everybody owns all

    def __len__(self) -> int:
        return len(self.train)

    def held(self, client: int) -> Indices:
        """All rows that the partition gave to a client: what it trains, validates and (unless mirrored) tests on."""
        mine = [self.train[client], self.val[client]]
        return np.concatenate(mine if self.mirrored else [*mine, self.test[client]])

    def digest(self) -> str:
        """A fingerprint of every index array, for the record."""
        digest = hashlib.sha256()
        for rows in (*self.train, *self.val, *self.test, self.global_test, np.array(self.heldout)):
            digest.update(len(rows).to_bytes(8, "big"))
            digest.update(rows.astype("<i8").tobytes())
        if len(self.public):
            digest.update(self.public.astype("<i8").tobytes())
        for classes in self.owned:
            digest.update(b"owned" + classes.astype("<i8").tobytes())
        return digest.hexdigest()


class Local(NamedTuple):
    """One client's rows."""

    train: Indices
    val: Indices
    test: Indices


def split_dataset(dataset: Dataset, options: Options, seed: int, limit: int | None = None) -> Split:
    """Divide a data set as the options say; split.seed, where given, takes the place of the run's seed throughout."""
    seed = seed if options.seed is None else options.seed
    partition: Partition = options.partition
    by = partition.by
    pooled = by == "users" and dataset.pooled_users
    rows, notes = _pool(dataset, len(dataset.y) if pooled else dataset.train, options.longtail, limit, seed)
    ids = getattr(dataset, by) if by else None
    origin = ids[rows] if ids is not None else None
    rng = generator(seed, "partition")
    parted = partition.split(dataset.labels[rows], options.clients, dataset.classes, rng, origin)
    _check(partition, parted, len(rows))
    parts = [rows[part] for part in parted.parts]
    owned = _owned(dataset, partition.owns, parts, seed)
    notes |= noted(clients_owning_fewer_classes=sum(len(each) < (partition.owns or 0) for each in owned))
    official = np.arange(0) if pooled else np.arange(dataset.train, len(dataset.y))
    public = _public(dataset, options.public, official, seed) if len(official) else official
    official = np.setdiff1d(official, public, assume_unique=True)
    own = _own_tests(dataset, by, official, parts, parted.origins, seed)
    locals_, left = _local(dataset, options, parts, official, seed, own)
    train, val, test = (tuple(column) for column in zip(*locals_, strict=True))
    if own is not None:  # whoever has no test of its own had one cut, and that is tested too
        official = np.union1d(official, np.concatenate(test))
    if not len(official):  # what is tested globally is what the clients are tested on
        public = _public(dataset, options.public, np.sort(np.concatenate(test)), seed)
        test = tuple(rows[~np.isin(rows, public)] for rows in test)
    notes = {**dataset.notes, **notes, **parted.notes, **left, **noted(public=len(public))}
    return Split(
        train=train,
        val=val,
        test=test,
        global_test=official if len(official) else np.sort(np.concatenate(test)),
        heldout=_held_out(len(parts), options.heldout, seed),
        names=_names(dataset, partition, parted),
        mirrored=options.test == "mirror",
        notes=notes,
        public=public,
        owned=owned,
    )


def split_alone(dataset: Dataset, options: Options, seed: int, client: int, names: tuple[str, ...]) -> Split:
    """The split as one client of a federation by users can make it from its own samples: the others' rows are empty."""
    if options.longtail > 1 or options.test == "mirror" or options.partition.by != "users":
        keys = "split.longtail=1, split.partition=users and no split.test=mirror"
        raise UsageError(f"where every site has its own samples alone, the split must have {keys}")
    if options.public:
        raise UsageError("split.public needs a global test set, and where every site has its own samples there is none")
    seed = seed if options.seed is None else options.seed
    nothing = np.arange(0)
    parts = [np.arange(dataset.train) if k == client else nothing for k in range(len(names))]
    own = [np.arange(dataset.train, len(dataset.y)) if k == client else nothing for k in range(len(names))]
    locals_, _ = _local(dataset, options, parts, nothing, seed, own)
    train, val, test = (tuple(column) for column in zip(*locals_, strict=True))
    heldout = _held_out(len(names), options.heldout, seed)
    return Split(train, val, test, nothing, heldout, names, False, dict(dataset.notes))


def _pool(dataset: Dataset, n: int, factor: float, limit: int | None, seed: int) -> tuple[Indices, dict[str, int]]:
    """The rows to divide: the first n of the pool, limited per class, then long-tailed."""
    labels, classes = dataset.labels[:n], dataset.classes
    rows = limited(labels, classes, limit, generator(seed, "limit"))
    tail = _tail(dataset, rows, factor, generator(seed, "longtail"))
    return tail, noted(limit_left_out=n - len(rows), longtail_left_out=len(rows) - len(tail))


def _tail(dataset: Dataset, rows: Indices, factor: float, rng: np.random.Generator) -> Indices:
    """The rows that a long tail leaves, which goes by the order of the classes."""
    places = np.argsort(dataset.order)[dataset.labels[rows]]
    return rows[long_tail(places, dataset.classes, factor, rng, at_least_one=dataset.masks)]


def _owned(dataset: Dataset, wanted: int | None, parts: list[Indices], seed: int) -> tuple[Indices, ...]:
    """Every client's classes, where the partition wants it to own so many: its folder's and others it shows."""
    if wanted is None:
        return ()
    made = []
    for client, part in enumerate(parts):
        folder = dataset.labels[part[0]]
        others = np.setdiff1d(np.flatnonzero(dataset.class_pixels[part].sum(0)), folder)
        drawn = generator(seed, "owned", client).choice(others, min(wanted - 1, len(others)), replace=False)
        made.append(np.sort(np.append(drawn, folder)).astype(np.int64))
    return tuple(made)


def _public(dataset: Dataset, count: int, rows: Indices, seed: int) -> Indices:
    """Choose test rows for the server, equally many of each class as far as there are enough."""
    if not count:
        return rows[:0]
    if count >= len(rows):
        raise UsageError(f"split.public={count} leaves no test: the global test set has {len(rows)} samples")
    labels = dataset.labels[rows]
    sizes = np.bincount(labels, minlength=dataset.classes)
    return rows[pick(labels, shares(count, np.ones_like(sizes), sizes), generator(seed, "public"))]


def _check(partition: Partition, parted: Parted, n: int) -> None:
    """Check the result of any partition, even a user's: no client is empty and no sample has two owners."""
    everything = np.concatenate(parted.parts) if parted.parts else np.array([], np.int64)
    if not parted.parts or not all(len(part) for part in parted.parts):
        raise UsageError(f"partition '{partition.name}' leaves a client without a sample; use fewer clients")
    if everything.min() < 0 or everything.max() >= n or np.bincount(everything).max() > 1:
        raise UsageError(f"partition '{partition.name}' gives a sample to two clients, or one that does not exist")


def _own_tests(
    dataset: Dataset, by: str, official: Indices, parts: list[Indices], origins: list[int] | None, seed: int
) -> list[Indices] | None:
    """Every client's official test rows; None where none of them is a client's.

    Clients of one domain share its rows, each class in proportion to what they hold of it.
    """
    ids = getattr(dataset, by) if by else None
    if ids is None or origins is None or not np.isin(ids[official], origins).any():
        return None
    if by == "users":
        return [official[ids[official] == origin] for origin in origins]
    own = [official[:0]] * len(origins)
    for origin in np.unique(origins):
        members, rows = np.flatnonzero(np.array(origins) == origin), official[ids[official] == origin]
        counts = np.stack([np.bincount(dataset.labels[parts[k]], minlength=dataset.classes) for k in members])
        dealt = deal(dataset.labels[rows], counts, generator(seed, "domain test", int(origin)))
        for k, test in zip(members, dealt, strict=True):
            own[k] = rows[test]
    return own


def _local(
    dataset: Dataset,
    options: Options,
    parts: list[Indices],
    official: Indices,
    seed: int,
    own: list[Indices] | None = None,
) -> tuple[list[Local], dict[str, int]]:
    """Every client's train, validation and test rows, and who had to go without; a test of its own is never cut."""
    nothing = np.array([], np.int64)
    given = [nothing] * len(parts) if own is None else own
    kept, tests, notes = parts, given, dict[str, int]()
    if options.test == "mirror":
        if own is not None:
            raise UsageError("split.test=mirror deals out an official test set, and here its samples have clients")
        tests, notes = _mirrored(dataset, options, parts, official, seed)
    elif options.test != "none" and options.test > 0:
        cut = [nothing if len(test) else rows for rows, test in zip(parts, given, strict=True)]
        stay, leave = _hold_out_all(dataset, options.partition, cut, options.test, seed, "local test")
        kept = [rows if len(test) else some for rows, test, some in zip(parts, given, stay, strict=True)]
        tests = [test if len(test) else some for test, some in zip(given, leave, strict=True)]
    train, vals = kept, [nothing] * len(parts)
    if options.val > 0:
        train, vals = _hold_out_all(dataset, options.partition, kept, options.val, seed, "local val")
    without = noted(
        without_test=_empty(tests) if options.test != "none" else 0, without_val=_empty(vals) if options.val > 0 else 0
    )
    return [Local(*three) for three in zip(train, vals, tests, strict=True)], {**notes, **without}


def _hold_out_all(
    dataset: Dataset, partition: Partition, parts: list[Indices], fraction: float, seed: int, purpose: str
) -> tuple[list[Indices], list[Indices]]:
    """Each client's rows as kept and held-out ones; at least one row is always kept."""
    kept, held = [], []
    for client, rows in enumerate(parts):
        if not len(rows):
            kept.append(rows)
            held.append(rows)
            continue
        count = min(partition.test_count(len(rows), fraction), len(rows) - 1)
        stay, leave = hold_out(dataset.labels[rows], count, generator(seed, purpose, client))
        kept.append(np.sort(rows[stay]))
        held.append(np.sort(rows[leave]))
    return kept, held


def _mirrored(
    dataset: Dataset, options: Options, parts: list[Indices], official: Indices, seed: int
) -> tuple[list[Indices], dict[str, int]]:
    """Official test rows under the same long tail, dealt by each client's share of every class (docs/data.md)."""
    if not len(official):
        raise UsageError(f"split.test=mirror needs official test samples, and {dataset.name} has none for this split")
    labels = dataset.labels
    rng = generator(seed, "mirror")
    rows = _tail(dataset, official, options.longtail, rng)
    counts = np.stack([np.bincount(labels[part], minlength=dataset.classes) for part in parts])
    tests = [rows[test] for test in options.partition.mirror(counts, labels[rows], rng)]
    return tests, noted(mirror_left_out=len(official) - len(np.unique(np.concatenate(tests))))


def _empty(parts: Iterable[Indices]) -> int:
    return sum(not len(part) for part in parts)


def _held_out(clients: int, count: int, seed: int) -> tuple[int, ...]:
    """The clients that never train."""
    if count >= clients:
        raise UsageError(f"split.heldout={count} leaves none of the {clients} clients to train; at most {clients - 1}")
    return tuple(sorted(generator(seed, "heldout").choice(clients, count, replace=False).tolist()))


def _names(dataset: Dataset, partition: Partition, parted: Parted) -> tuple[str, ...]:
    """A user's client has the user's name; others are numbered."""
    width = len(str(len(parted.parts) - 1))
    numbers = [f"{k:0{width}d}" for k in range(len(parted.parts))]
    if parted.origins is None:
        return tuple(f"client-{number}" for number in numbers)
    if partition.by == "users":
        return tuple(dataset.user_names[origin] for origin in parted.origins)
    return tuple(f"{dataset.domain_names[o]}-{n}" for o, n in zip(parted.origins, numbers, strict=True))
