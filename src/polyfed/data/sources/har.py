"""UCI HAR: windows of a phone's motion sensors, six activities, thirty people."""

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator

from polyfed.data.sources.base import Dataset, Source, broken, find, source
from polyfed.errors import DataError
from polyfed.registry import param

FOLDER = "UCI HAR Dataset"
CHANNELS = tuple(f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")
STEPS = 128
ACTIVITIES = ("walking", "walking upstairs", "walking downstairs", "sitting", "standing", "laying")
# the subjects whose numbers of windows fit the accuracies in the paper (docs/changed-from-papers.md)
DISTFL = [1, 2, 3, 5, 6, 7, 8, 9, 11, 12, 13, 16, 19, 21, 22, 24, 26, 28, 29, 30]


def _subjects(value: Any) -> Any:
    some = isinstance(value, list | tuple) and value and all(type(s) is int and 1 <= s <= 30 for s in value)
    if some or value in ("all", "distfl"):
        return value
    raise ValueError("expected 'all', 'distfl' or a list of subjects from 1 to 30")


@source("uci-har", paper="Anguita et al. 2013")
class UciHar(Source):
    """9 channels x 128 steps at 50 Hz; users are the subjects, and a subject's rows of both parts are its own."""

    subjects: Annotated[list[int] | Literal["all", "distfl"], BeforeValidator(_subjects)] = param(
        "all", "which people: all, distfl (the twenty of DistFL's Table 4), or a list of numbers"
    )

    @property
    def natural_partition(self) -> str:
        """One person, one client."""
        return "users"

    def load(self) -> Dataset:
        parts = [self._part(part) for part in ("train", "test")]
        x, y, subject = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        keep = np.isin(subject, self._wanted())
        if not keep.any():
            raise DataError(f"{self.name}: none of the subjects {self.subjects} has a window in {self.home()}")
        train = int(keep[: len(parts[0][1])].sum())
        x, y = x[keep], y[keep]
        known, users = np.unique(subject[keep], return_inverse=True)
        people = tuple(f"subject {number}" for number in known)
        of: dict[str, Any] = {"users": users, "user_names": people, "pooled_users": True}
        return Dataset(self.name, x, y, train, ACTIVITIES, **of, unscaled=True)

    def _wanted(self) -> list[int]:
        named = {"all": list(range(1, 31)), "distfl": DISTFL}
        return named[self.subjects] if isinstance(self.subjects, str) else self.subjects

    def _part(self, part: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        folders = [self.home() / FOLDER / part, self.home() / part]
        y, subject = (self._whole_numbers(find(self.name, folders, f"{what}_{part}.txt")) for what in ("y", "subject"))
        signals = [folder / "Inertial Signals" for folder in folders]
        files = [find(self.name, signals, f"{channel}_{part}.txt") for channel in CHANNELS]
        x = np.stack([self._window_rows(file, len(y)) for file in files], axis=1)
        if len(subject) != len(y):
            raise broken(self.name, self.home(), f"has {len(y)} labels but {len(subject)} subjects in its {part} part")
        return x, y - 1, subject

    def _whole_numbers(self, file: Path) -> np.ndarray:
        return _numbers(file, self.name, np.int64).reshape(-1)

    def _window_rows(self, file: Path, rows: int) -> np.ndarray:
        """One channel: a window per line."""
        table = _numbers(file, self.name, np.float32)
        if table.shape != (rows, STEPS):
            what = f"is damaged: {list(table.shape)} numbers where {[rows, STEPS]} were expected"
            raise broken(self.name, file, what)
        return table


def _numbers(file: Path, name: str, kind: type) -> np.ndarray:
    try:
        return np.loadtxt(file, dtype=kind, ndmin=2)
    except (OSError, ValueError) as error:
        raise broken(name, file, f"is not a table of numbers ({error})") from None
