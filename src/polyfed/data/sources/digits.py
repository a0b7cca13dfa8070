"""The 8x8 digits that come with scikit-learn: always there, for first steps and tests."""

import numpy as np

from polyfed.data.sources.base import Dataset, Source, source
from polyfed.data.sources.raw import pixel_statistics
from polyfed.data.strata import hold_out
from polyfed.rng import generator


@source("digits", paper="Alpaydin and Kaynak 1998")
class Digits(Source):
    """1797 handwritten digits; a fixed, stratified fifth is the official test part."""

    def load(self) -> Dataset:
        from sklearn.datasets import load_digits

        bunch = load_digits()
        images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[..., None]
        labels = bunch.target.astype(np.int64)
        kept, held = hold_out(labels, len(labels) // 5, generator(0, "digits"))  # a constant: never the run's seed
        order = np.concatenate([kept, held])
        mean, std = pixel_statistics(images[kept])
        names = tuple(str(digit) for digit in range(10))
        return Dataset(self.name, images[order], labels[order], len(kept), names, mean, std)
