"""Who gets which samples: every partition draws once, repairs where it must, and reports what it moved or dropped."""

import math
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import numpy as np

from polyfed.data import dirichlet
from polyfed.data.fields import whole_or
from polyfed.data.repair import repair, too_few
from polyfed.data.strata import Indices, deal, grouped, parts_of
from polyfed.errors import UsageError
from polyfed.registry import Registry, Spec, param

Array = np.ndarray
Rng = np.random.Generator


@dataclass(frozen=True)
class Parted:
    """Disjoint positions per client, the user or domain each client comes from (if any), and what had to be done."""

    parts: list[Indices]
    notes: dict[str, int] = field(default_factory=dict)
    origins: list[int] | None = None


class Partition(Spec):
    """A rule that divides labelled samples among clients; `split` is what a new one must write."""

    by: ClassVar[Literal["", "users", "domains", "folders"]] = (
        ""  # which ids of the source `split` is given as `origin`
    )

    def split(self, labels: Array, clients: int | None, classes: int, rng: Rng, origin: Array | None = None) -> Parted:
        """Positions into labels for every client: disjoint, none empty, and complete but for what the notes count."""
        raise TypeError(f"{type(self).__name__} must say how it splits")

    def test_count(self, n: int, fraction: float) -> int:
        """How many of a client's n samples a local test of this fraction takes: rounded down, but at least one."""
        return max(int(fraction * n), 1)

    @property
    def owns(self) -> int | None:
        """Of masks: how many classes a client owns, its folder's and others that its images show; None: all."""
        return None

    def mirror(self, counts: Array, labels: Array, rng: Rng) -> list[Indices]:
        """Official test rows for every client, by its training counts[client, class]; here disjoint, in proportion."""
        return deal(labels, counts, rng)


partitions = Registry("partition", "polyfed.data.partition", Partition)
partition = partitions.register


@partition("iid")
class Iid(Partition):
    """Equal random parts."""

    def split(self, labels: Array, clients: int | None, classes: int, rng: Rng, origin: Array | None = None) -> Parted:
        count = enough(labels, clients)
        return Parted([np.sort(part) for part in np.array_split(rng.permutation(len(labels)), count)])


@partition("dirichlet", paper="Hsu et al. 2019")
class Dirichlet(Partition):
    """Label skew: D1 `class`, D1b `class_capped`, D2 `feddf`, D3 `client` (docs/data.md), with the size repair."""

    alpha: float = param(0.5, "concentration: small is uneven", gt=0)
    variant: Literal["class", "class_capped", "feddf", "client"] = param("class", "which paper's way of drawing")
    min: int | None = param(
        None, "least samples per client; by default 10 for class_capped, half a fair share in feddf, else 1", ge=0
    )

    def split(self, labels: Array, clients: int | None, classes: int, rng: Rng, origin: Array | None = None) -> Parted:
        least = self.min if self.min is not None else 10 if self.variant == "class_capped" else 0
        count = enough(labels, clients, least)
        if self.variant == "feddf":
            parts, moved = dirichlet.feddf(labels, count, classes, self.alpha, rng, self.min)
            return Parted(parts, noted(moved=moved))
        draw = {"class": dirichlet.class_wise, "class_capped": dirichlet.capped, "client": dirichlet.client_wise}
        parts = draw[self.variant](labels, count, classes, self.alpha, rng)
        return Parted(parts, noted(moved=repair(parts, labels, max(least, 1))))


@partition("shards", paper="McMahan et al. 2017")
class Shards(Partition):
    """Samples sorted by label and cut into equal shards; every client gets `shards` random ones."""

    shards: int = param(2, "shards per client", ge=1)

    def split(self, labels: Array, clients: int | None, classes: int, rng: Rng, origin: Array | None = None) -> Parted:
        count = enough(labels, clients)
        if count * self.shards > len(labels):
            raise UsageError(
                f"{count} clients with split.shards={self.shards} need {count * self.shards} shards, but there are "
                f"{len(labels)} samples; at most {len(labels) // count} shards per client are possible"
            )
        shards = np.array_split(grouped(labels, rng), count * self.shards)
        hands = rng.permutation(len(shards)).reshape(count, self.shards)
        return Parted([np.sort(np.concatenate([shards[s] for s in hand])) for hand in hands])


@partition("incomplete", paper="Li et al. 2023")
class Incomplete(Partition):
    """Every client has a random set of classes; a class is shared equally by its owners (MAP).

    What does not divide is dropped, as in the official code; a class with fewer samples than owners is not lost but
    goes, one sample each, to some of them.
    """

    classes: Annotated[int | Literal["uniform"], whole_or("uniform")] = param(
        "uniform", "classes per client, or uniform: drawn from 2 to all for each client"
    )

    def split(self, labels: Array, clients: int | None, classes: int, rng: Rng, origin: Array | None = None) -> Parted:
        count = enough(labels, clients)
        owns, added = self._sets(count, classes, rng)
        owner, order, start = np.full(len(labels), -1), grouped(labels, rng), 0
        for c, size in enumerate(np.bincount(labels, minlength=classes)):
            owners = rng.permutation(np.flatnonzero(owns[:, c]))[: max(int(size), 1)]
            share = int(size) // len(owners)
            owner[order[start : start + share * len(owners)]] = np.repeat(owners, share)
            start += int(size)
        parts = parts_of(owner, count)
        moved = repair(parts, labels, 1)
        return Parted(parts, noted(classes_added=added, dropped=int((owner < 0).sum()), moved=moved))

    def _sets(self, clients: int, classes: int, rng: Rng) -> tuple[Array, int]:
        """owns[client, class], and how many classes that nobody drew had to be given to someone."""
        if self.classes != "uniform" and self.classes > classes:
            raise UsageError(f"split.classes={self.classes} is more than the {classes} classes there are")
        owns = np.zeros((clients, classes), bool)
        for row in owns:
            many = rng.integers(min(2, classes), classes + 1) if self.classes == "uniform" else self.classes
            row[rng.choice(classes, many, replace=False)] = True
        orphans = np.flatnonzero(~owns.any(axis=0))
        for c in orphans:
            owns[rng.integers(clients), c] = True
        return owns, len(orphans)


@partition("groups", paper="Liu et al. 2021")
class Groups(Partition):
    """DistFL's types: consecutive classes form groups, consecutive clients share a group equally.

    With split.test=mirror every client is tested on ALL official test rows of its group's classes: the clients of a
    group share them.
    """

    groups: int | None = param(None, "how many groups; 5 by default", ge=1)

    def split(self, labels: Array, clients: int | None, classes: int, rng: Rng, origin: Array | None = None) -> Parted:
        count = enough(labels, clients)
        owner, order = np.empty(len(labels), np.int64), grouped(labels, rng)
        for members, group in self._types(count, classes):
            mine = order[np.isin(labels[order], group)]
            if len(mine) < len(members):
                raise UsageError(
                    f"the group of classes {group[0]} to {group[-1]} has {len(mine)} samples for {len(members)} "
                    "clients; use fewer clients or more samples"
                )
            owner[mine] = members[np.arange(len(mine)) % len(members)]  # in turn: each class is shared equally
        return Parted(parts_of(owner, count))

    def mirror(self, counts: Array, labels: Array, rng: Rng) -> list[Indices]:
        tests: list[Indices] = []
        for members, group in self._types(*counts.shape):
            tests += [np.flatnonzero(np.isin(labels, group))] * len(members)
        return tests

    def _types(self, clients: int, classes: int) -> list[tuple[Array, Array]]:
        """The clients and the classes of every group."""
        many = 5 if self.groups is None else self.groups
        if many > min(classes, clients):
            raise UsageError(
                f"split.groups={many} needs at least as many classes and clients, but there are {classes} classes "
                f"and {clients} clients; at most {min(classes, clients)} groups are possible"
            )
        pieces = np.array_split(np.arange(clients), many), np.array_split(np.arange(classes), many)
        return list(zip(*pieces, strict=True))


@partition("users")
class Users(Partition):
    """Every user of the source is a client; with fewer split.clients, the users that come first.

    A user's local test is rounded up (⌈n/4⌉ of DistFL's HAR users), or down as everywhere else.
    """

    by = "users"
    rounding: Literal["up", "down"] = param("up", "how a user's number of test samples is rounded")

    def split(self, labels: Array, clients: int | None, classes: int, rng: Rng, origin: Array | None = None) -> Parted:
        users, owner = origins(
            origin, "users", "uci-har, femnist, folder, manifest, a data set per client, arrays with users"
        )
        count = len(users) if clients is None else clients
        if count > len(users):
            raise UsageError(f"split.clients={count} is more than the {len(users)} users there are")
        left_out = int((owner >= count).sum())
        notes = noted(users_left_out=len(users) - count, dropped=left_out)
        return Parted(parts_of(np.where(owner < count, owner, -1), count), notes, users[:count].tolist())

    def test_count(self, n: int, fraction: float) -> int:
        if self.rounding == "down":
            return super().test_count(n, fraction)
        return math.ceil(fraction * n - 1e-9)  # 0.07 * 100 is a hair above 7


@partition("domains")
class Domains(Partition):
    """Every domain of the source is cut at random into the same number of clients; one each by default (DistFL)."""

    by = "domains"

    def split(self, labels: Array, clients: int | None, classes: int, rng: Rng, origin: Array | None = None) -> Parted:
        domains, domain = origins(origin, "domains", "pacs, office-home, digits3, folder")
        count = enough(labels, len(domains) if clients is None else clients)
        each, rest = divmod(count, len(domains))
        if rest or not each:
            fitting = max(round(count / len(domains)), 1) * len(domains)
            raise UsageError(
                f"split.clients={count} cannot be shared equally by {len(domains)} domains; {fitting} would do"
            )
        smallest = int(np.bincount(domain).min())
        if smallest < each:
            raise UsageError(f"a domain has {smallest} samples for {each} clients; use at most {smallest} per domain")
        rows = [rng.permutation(np.flatnonzero(domain == d)) for d in range(len(domains))]
        parts = [np.sort(part) for some in rows for part in np.array_split(some, each)]
        return Parted(parts, origins=np.repeat(domains, each).tolist())


@partition("class-folders", paper="FedSeg, Miao et al. 2023")
class ClassFolders(Partition):
    """Masks: images are sorted into a folder per class, which is a client or is cut into equal `copies`.

    A client owns its folder's class and `beta` - 1 others that are in its images, or as many as those show; it does not
    know the rest.
    """

    by = "folders"
    beta: int = param(1, "classes that a client owns", ge=1)
    copies: int = param(1, "clients that a folder is cut into", ge=1)

    def split(self, labels: Array, clients: int | None, classes: int, rng: Rng, origin: Array | None = None) -> Parted:
        if origin is None:
            raise UsageError("split.partition=class-folders needs masks (camvid, cityscapes, folders images and masks)")
        wanted = classes * self.copies
        if clients not in (None, wanted):
            raise UsageError(f"split.clients={clients}: {classes} folders with split.copies={self.copies} are {wanted}")
        folders = [rng.permutation(np.flatnonzero(origin == c)) for c in range(classes)]
        smallest = min(map(len, folders))
        if smallest < self.copies:
            raise UsageError(
                f"a folder has {smallest} images for split.copies={self.copies}: at most {smallest} would do"
            )
        return Parted([np.sort(part) for folder in folders for part in np.array_split(folder, self.copies)])

    @property
    def owns(self) -> int:
        return self.beta


def enough(labels: Array, clients: int | None, least: int = 0) -> int:
    """Return the number of clients if there are enough samples for them; refuse it otherwise."""
    if clients is None:
        raise UsageError("split.clients must be given for this partition")
    if clients > len(labels):
        raise UsageError(
            f"split.clients={clients} is more than there are samples: at most {len(labels)} clients are possible"
        )
    if clients * least > len(labels):
        raise UsageError(f"split.min={least}: {too_few(len(labels), clients, least)}")
    return clients


def origins(origin: Array | None, what: str, where: str) -> tuple[Array, Array]:
    """The users (or domains) there are, and the place of each sample's among them."""
    if origin is None:
        raise UsageError(f"split.partition={what} needs data whose samples have {what} ({where}); these have none")
    return np.unique(origin, return_inverse=True)


def noted(**counts: int) -> dict[str, int]:
    """The counts that are not zero."""
    return {what: count for what, count in counts.items() if count}
