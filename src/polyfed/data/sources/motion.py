"""Motion of people with a phone: WISDM's features of an app's users, HAPT's raw signals in windows."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from polyfed.data.sources.base import Dataset, Source, misplaced, source

ACTIVITIES = ("Walking", "Jogging", "Upstairs", "Downstairs", "Sitting", "Standing")
FEATURES = (
    *(f"{axis}{bin}" for axis in "XYZ" for bin in range(10)),
    *(f"{axis}{what}" for what in ("AVG", "PEAK", "ABSOLDEV", "STANDDEV") for axis in "XYZ"),
    "RESULTANT",
)
STEPS, HOP = 128, 64


class OfPeople(Source):
    """Samples that come with the people who made them; there is no official test."""

    @property
    def natural_partition(self) -> str:
        """One person, one client."""
        return "users"


@source("wisdm", paper="Kwapisz et al. 2011")
class Wisdm(OfPeople):
    """43 features of 10 seconds each, 6 activities of 36 users; a missing value becomes its client's training mean."""

    file: ClassVar[str] = "WISDM_ar_v1.1_transformed.arff"

    def load(self) -> Dataset:
        places = [self.home() / "WISDM_ar_v1.1", self.home()]
        path = next((place / self.file for place in places if (place / self.file).is_file()), None)
        if path is None:
            raise misplaced(self.name, self.home() / self.file, "is missing", "the file of WISDM's transformed data")
        names, rows = _arff(path, self.name)
        lost = [name for name in ("user", *FEATURES, "class") if name not in names]
        if lost:
            raise misplaced(self.name, path, f"has no attribute '{lost[0]}'", "WISDM's 43 features, user and class")
        x = self._numbers(path, rows, [names.index(name) for name in FEATURES])
        kinds, people = ([row[names.index(name)].strip('"') for row in rows] for name in ("class", "user"))
        strange = sorted(set(kinds) - set(ACTIVITIES))
        if strange:
            raise misplaced(self.name, path, f"has the activity '{strange[0]}'", f"only {', '.join(ACTIVITIES)}")
        y = np.array([ACTIVITIES.index(kind) for kind in kinds])
        known = sorted(set(people), key=lambda person: (len(person), person))
        users = np.array([known.index(person) for person in people])
        missing = int(np.isnan(x).sum())
        return Dataset(
            self.name,
            x,
            y,
            len(y),
            ACTIVITIES,
            users=users,
            user_names=tuple(f"user {person}" for person in known),
            notes={"missing_values": missing} if missing else {},
            incomplete=missing > 0,
            unscaled=True,
        )

    def _numbers(self, path: Path, rows: list[list[str]], columns: list[int]) -> np.ndarray:
        try:
            return np.array([[float("nan" if row[c] == "?" else row[c]) for c in columns] for row in rows], np.float32)
        except (ValueError, IndexError) as error:
            raise misplaced(self.name, path, f"is damaged ({error})", "numbers, or ? where one is missing") from None


def _arff(path: Path, name: str) -> tuple[list[str], list[list[str]]]:
    """The names of an .arff file's attributes, and its rows of words."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, ValueError) as error:
        raise misplaced(name, path, f"cannot be read ({error})", "an .arff file") from None
    said = [line for line in lines if line and not line.startswith("%")]
    names = [line.split()[1].strip("\"'") for line in said if line.lower().startswith("@attribute ")]
    starts = [at for at, line in enumerate(said) if line.lower() == "@data"]
    rows = [[cell.strip() for cell in line.split(",")] for line in said[starts[0] + 1 :]] if starts else []
    if not rows or any(len(row) != len(names) for row in rows):
        what = f"is damaged: not every row has {len(names)} values" if rows else "has no row after @data"
        raise misplaced(name, path, what, "an .arff file with a row per sample")
    return names, rows


HAPT = (
    *("walking", "walking upstairs", "walking downstairs", "sitting", "standing", "laying"),
    *("stand to sit", "sit to stand", "sit to lie", "lie to sit", "stand to lie", "lie to stand"),
)
LAYOUT = "labels.txt and acc_expEE_userUU.txt and gyro_expEE_userUU.txt of HAPT's RawData"


@source("hapt", paper="Reyes-Ortiz et al. 2016")
class Hapt(OfPeople):
    """Raw accelerometer and gyroscope (6 channels at 50 Hz) of 30 people in windows of 128 steps, half overlapping.

    A window lies within one labelled segment; segments shorter than a window are counted as `segments_too_short`.
    """

    def load(self) -> Dataset:
        folder = next((p for p in (self.home() / "RawData", self.home()) if (p / "labels.txt").is_file()), None)
        if folder is None:
            raise misplaced(self.name, self.home() / "RawData" / "labels.txt", "is missing", LAYOUT)
        segments = self._table(folder / "labels.txt", 5).astype(np.int64)
        if len(segments) and not (segments[:, 2].min() >= 1 and segments[:, 2].max() <= len(HAPT)):
            raise misplaced(self.name, folder / "labels.txt", "has a strange activity", "numbers from 1 to 12")
        windows, y, people, short = [], [], [], 0
        for recording in np.unique(segments[:, :2], axis=0):
            signal = self._signal(folder, *recording.tolist())
            for _, person, activity, first, last in segments[(segments[:, :2] == recording).all(axis=1)].tolist():
                if not 1 <= first <= last <= signal.shape[1]:
                    what = f"has the segment {first} to {last} in a recording of {signal.shape[1]} steps"
                    raise misplaced(self.name, folder / "labels.txt", what, LAYOUT)
                starts = range(first - 1, last - STEPS + 1, HOP)  # segments are counted from 1, their ends inclusive
                windows += [signal[:, at : at + STEPS] for at in starts]
                y += [activity - 1] * len(starts)
                people += [person] * len(starts)
                short += not len(starts)
        if not windows:
            raise misplaced(self.name, folder, f"has no segment of {STEPS} steps", LAYOUT)
        x = np.stack(windows)
        known, users = np.unique(people, return_inverse=True)
        names = tuple(f"user {person}" for person in known)
        notes = {"segments_too_short": short} if short else {}
        of: dict[str, Any] = {"users": users, "user_names": names, "notes": notes}
        return Dataset(self.name, x, np.array(y), len(y), HAPT, **of, unscaled=True)

    def _signal(self, folder: Path, experiment: int, person: int) -> np.ndarray:
        """All six channels of one recording, channels first."""
        files = [folder / f"{sensor}_exp{experiment:02d}_user{person:02d}.txt" for sensor in ("acc", "gyro")]
        acc, gyro = (self._table(file, 3) for file in files)
        if len(acc) != len(gyro):
            raise misplaced(self.name, files[1], f"has {len(gyro)} steps, and {files[0].name} has {len(acc)}", LAYOUT)
        return np.concatenate([acc, gyro], axis=1).T

    def _table(self, file: Path, columns: int) -> np.ndarray:
        import pandas

        if not file.is_file():
            raise misplaced(self.name, file, "is missing", LAYOUT)
        try:
            table = pandas.read_csv(file, sep=r"\s+", header=None).to_numpy(np.float32)
        except Exception as error:  # parsers and the file system each have their own
            raise misplaced(self.name, file, f"is not a table of numbers ({error})", LAYOUT) from None
        if table.shape[1] != columns or not np.isfinite(table).all():
            raise misplaced(self.name, file, f"is damaged: {columns} numbers were expected in every line", LAYOUT)
        return table
