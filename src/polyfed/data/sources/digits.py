"""The 8x8 digits that come with scikit-learn: always there, for first steps and tests."""

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from polyfed.data.sources.base import Dataset, Source, source
from polyfed.data.sources.raw import pixel_statistics
from polyfed.data.strata import hold_out
from polyfed.errors import DataError
from polyfed.rng import generator


@source("digits", paper="Alpaydin and Kaynak 1998")
class Digits(Source):
    """1797 handwritten digits; a fixed, stratified fifth is the official test part."""

    def load(self) -> Dataset:
        rows = bundled()
        images = np.rint(rows[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)[..., None]
        labels = rows[:, -1].astype(np.int64)
        kept, held = hold_out(labels, len(labels) // 5, generator(0, "digits"))  # a constant: never the run's seed
        order = np.concatenate([kept, held])
        mean, std = pixel_statistics(images[kept])
        names = tuple(str(digit) for digit in range(10))
        return Dataset(self.name, images[order], labels[order], len(kept), names, mean, std)


def bundled() -> np.ndarray:
    """Scikit-learn's own file, 64 pixels and a class in each row; importing the package takes longer than torch."""
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise DataError("digits: they come with scikit-learn, which is not installed here; pip install scikit-learn")
    with gzip.open(Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        return np.fromstring(file.read().strip().replace("\n", ","), sep=",").reshape(-1, 65)
