"""Pictures as bad weather, lenses and files leave them: ImageNet-C's families (Hendrycks and Dietterich 2019).

These are versions of our own. Strengths that do not depend on the size of a picture are the published ones; lengths are
the published ones for 224 pixels, scaled to the picture's side; frost is drawn instead of cut from photographs. Every
sample has a generator of its own, so that the same seed gives the same bits.
"""

import io
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from polyfed.data.fields import Kind
from polyfed.data.split import Split
from polyfed.rng import generator

Array = np.ndarray
Draw = np.random.Generator
Change = Callable[[Array, int, Draw], Array]  # pixels [H, W, C] from 0 to 1, a severity from 0 to 4 -> pixels

FAMILIES: dict[str, tuple[str, ...]] = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
}


class Corruption(NamedTuple):
    """What is done to which samples: a kind, or a family (or any) of which every sample or client draws one."""

    kind: Kind
    severity: int = 3
    by: Literal["sample", "client"] = "sample"
    on: Literal["all", "train", "test"] = "all"

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds to draw from."""
        if self.kind == "any":
            return tuple(kind for family in FAMILIES.values() for kind in family)
        return FAMILIES.get(self.kind, (self.kind,))

    @property
    def idle(self) -> bool:
        """Whether it leaves everything as it is."""
        return self.kind == "none" or self.severity == 0


def corrupted(image: Array, kind: str, severity: int, draw: Draw) -> Array:
    """A uint8 picture [H, W, C] under one kind of corruption; severity 0 leaves it as it is, 5 is the worst."""
    if severity == 0:
        return image
    made = CHANGES[kind](image.astype(np.float32) / 255, severity - 1, draw)
    return np.rint(255 * made.clip(0, 1)).astype(np.uint8)


def corrupt_rows(x: Array, split: Split, wish: Corruption, seed: int) -> tuple[Array, int]:
    """A copy of the pool with the rows that are in use corrupted, and how many these are.

    Where every client draws its kind, a row that is nobody's draws one for itself.
    """
    kind_of = _kinds_of_clients(split, wish, seed) if wish.by == "client" else {}
    made, rows = x.copy(), _rows(split, wish.on)
    for row in rows.tolist():
        draw = generator(seed, "corrupt", row)
        own = wish.kinds[draw.integers(len(wish.kinds))]
        made[row] = corrupted(x[row], kind_of.get(row, own), wish.severity, draw)
    return made, len(rows)


def _kinds_of_clients(split: Split, wish: Corruption, seed: int) -> dict[int, str]:
    """The kind of every row that has a client."""
    found: dict[int, str] = {}
    for client in range(len(split)):
        kind = wish.kinds[generator(seed, "corrupt client", client).integers(len(wish.kinds))]
        for part in (split.train, split.val, split.test):
            found.update(dict.fromkeys(part[client].tolist(), kind))
    return found


def _rows(split: Split, on: str) -> Array:
    """The rows of the pool that are trained on, tested on, or either."""
    train = [*split.train, *split.val]
    test = [*split.test, split.global_test, split.public]
    return np.unique(np.concatenate({"train": train, "test": test, "all": train + test}[on]))


# ---- noise


def gaussian_noise(x: Array, severity: int, draw: Draw) -> Array:
    """Normal noise on every value."""
    return x + draw.normal(0, (0.08, 0.12, 0.18, 0.26, 0.38)[severity], x.shape).astype(np.float32)


def shot_noise(x: Array, severity: int, draw: Draw) -> Array:
    """Each value is a count of too few photons."""
    photons = (60, 25, 12, 5, 3)[severity]
    return draw.poisson(x * photons).astype(np.float32) / photons


def impulse_noise(x: Array, severity: int, draw: Draw) -> Array:
    """Salt and pepper."""
    chance = draw.random(x.shape)
    share = (0.03, 0.06, 0.09, 0.17, 0.27)[severity]
    return np.where(chance < share / 2, 0, np.where(chance < share, 1, x)).astype(np.float32)


# ---- blur


def defocus_blur(x: Array, severity: int, draw: Draw) -> Array:
    """A disc in place of each point."""
    from scipy.ndimage import convolve

    radius = 0.5 + (3, 4, 6, 8, 10)[severity] * _scale(x)
    reach = np.arange(-int(radius + 1), int(radius + 1) + 1)
    disc = (radius + 0.5 - np.hypot(*np.meshgrid(reach, reach))).clip(0, 1)
    return np.asarray(convolve(x, (disc / disc.sum())[..., None].astype(np.float32), mode="reflect"))


def glass_blur(x: Array, severity: int, draw: Draw) -> Array:
    """Every pixel comes from somewhere near it, as behind frosted glass."""
    from scipy.ndimage import gaussian_filter

    reach = 0.5 + (2, 3, 4, 6, 8)[severity] * _scale(x)
    moved = _sampled(x, *(reach * draw.uniform(-1, 1, (2, *x.shape[:2]))))
    sigma = 0.2 + (0.7, 0.9, 1.0, 1.1, 1.5)[severity] * _scale(x)
    return np.asarray(gaussian_filter(moved, (sigma, sigma, 0)))


def motion_blur(x: Array, severity: int, draw: Draw) -> Array:
    """The mean along a line in a random direction."""
    return _along(x, 1 + (10, 13, 16, 20, 24)[severity] * _scale(x), draw.uniform(0, np.pi))


def zoom_blur(x: Array, severity: int, draw: Draw) -> Array:
    """The mean of enlargements about the middle."""
    high, wide = x.shape[:2]
    down, right = np.mgrid[:high, :wide] - np.array([(high - 1) / 2, (wide - 1) / 2])[:, None, None]
    factors = np.linspace(1, 1 + (0.11, 0.16, 0.21, 0.26, 0.31)[severity], 8)
    return np.stack([_sampled(x, down / f - down, right / f - right) for f in factors]).mean(axis=0)


# ---- weather


def snow(x: Array, severity: int, draw: Draw) -> Array:
    """Falling flakes before a paler picture."""
    density, pale = (0.02, 0.035, 0.05, 0.07, 0.09)[severity], (0.1, 0.15, 0.2, 0.25, 0.3)[severity]
    flakes = (draw.random((*x.shape[:2], 1)) < density).astype(np.float32)
    fallen = _along(flakes, 1 + 10 * _scale(x), draw.uniform(np.pi / 4, 3 * np.pi / 4))
    grey = x.mean(axis=2, keepdims=True) * 0.5 + 0.5
    return (1 - pale) * x + pale * grey + 2 * fallen


def frost(x: Array, severity: int, draw: Draw) -> Array:
    """Ice on the pane: bright ridges of a random landscape."""
    ice = 1 - np.abs(2 * _plasma(x, draw, decay=1.4) - 1)
    keep, add = ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.75), (0.6, 0.85))[severity]
    return keep * x + add * ice**2


def fog(x: Array, severity: int, draw: Draw) -> Array:
    """Patches of white."""
    strength, decay = ((1.5, 2), (2, 2), (2.5, 1.7), (2.7, 1.5), (3, 1.4))[severity]
    brightest = x.max()
    return (x + strength * _plasma(x, draw, decay)) * brightest / (brightest + strength)


def brightness(x: Array, severity: int, draw: Draw) -> Array:
    """More value, with hue and saturation kept."""
    value = x.max(axis=2, keepdims=True)
    more = np.minimum(value + (0.1, 0.2, 0.3, 0.4, 0.5)[severity], 1)
    return np.where(value > 0, x * more / np.maximum(value, 1e-6), more)


# ---- digital


def contrast(x: Array, severity: int, draw: Draw) -> Array:
    """Every value moves towards the mean of its channel."""
    mean = x.mean(axis=(0, 1), keepdims=True)
    return mean + (0.4, 0.3, 0.2, 0.1, 0.05)[severity] * (x - mean)


def elastic_transform(x: Array, severity: int, draw: Draw) -> Array:
    """Smoothly bent."""
    from scipy.ndimage import gaussian_filter

    side = min(x.shape[:2])
    smooth = [gaussian_filter(field, 0.06 * side) for field in draw.normal(size=(2, *x.shape[:2]))]
    reach = (0.02, 0.03, 0.04, 0.055, 0.07)[severity] * side
    return _sampled(x, *(reach * field / max(float(field.std()), 1e-6) for field in smooth))


def pixelate(x: Array, severity: int, draw: Draw) -> Array:
    """Fewer, larger pixels: each is the mean of what it covers."""
    from PIL import Image

    high, wide = x.shape[:2]
    small = tuple(max(1, round(side * (0.6, 0.5, 0.4, 0.3, 0.25)[severity])) for side in (wide, high))
    planes = [Image.fromarray(np.ascontiguousarray(x[..., c])) for c in range(x.shape[2])]
    box, nearest = Image.Resampling.BOX, Image.Resampling.NEAREST
    return np.stack([np.array(p.resize(small, box).resize((wide, high), nearest)) for p in planes], axis=2)


def jpeg_compression(x: Array, severity: int, draw: Draw) -> Array:
    """Saved as a poor JPEG; where a picture has neither one nor three channels, each channel by itself."""
    if x.shape[2] not in (1, 3):
        return np.concatenate([jpeg_compression(x[..., [c]], severity, draw) for c in range(x.shape[2])], axis=2)
    from PIL import Image

    pixels, file = np.rint(255 * x).astype(np.uint8), io.BytesIO()
    Image.fromarray(pixels[..., 0] if x.shape[2] == 1 else pixels).save(
        file, "JPEG", quality=(25, 18, 15, 10, 7)[severity]
    )
    return np.array(Image.open(file), np.float32).reshape(x.shape) / 255


# ---- what several of them need


def _scale(x: Array) -> float:
    """The factor that turns a length of ImageNet-C, which is made for 224 pixels, into one for this picture."""
    return min(x.shape[:2]) / 224


def _sampled(x: Array, down: Array, right: Array) -> Array:
    """Each pixel is taken from `down` below and `right` to the right of it, interpolated between pixels."""
    from scipy.ndimage import map_coordinates

    places = np.mgrid[: x.shape[0], : x.shape[1]] + np.stack([down, right])
    planes = [map_coordinates(x[..., c], places, order=1, mode="reflect") for c in range(x.shape[2])]
    return np.stack(planes, axis=2)


def _along(x: Array, length: float, angle: float) -> Array:
    """The mean over a line of this length through each pixel."""
    ones = np.ones(x.shape[:2])
    places = np.linspace(-length / 2, length / 2, 9)
    moved = [_sampled(x, np.sin(angle) * at * ones, np.cos(angle) * at * ones) for at in places]
    return np.stack(moved).mean(axis=0)


def _plasma(x: Array, draw: Draw, decay: float) -> Array:
    """A random landscape [H, W, 1] from 0 to 1; the larger the decay, the smoother."""
    from scipy.ndimage import zoom

    high, wide = x.shape[:2]
    side, total, weight = max(high, wide), np.zeros((high, wide), np.float32), 1.0
    cells = 2
    while cells <= side:
        grid = zoom(draw.random((cells + 1, cells + 1)), (side + 1) / (cells + 1), order=1)
        total += (weight * grid[:high, :wide]).astype(np.float32)
        cells, weight = 2 * cells, weight / decay
    low, top = total.min(), total.max()
    return ((total - low) / max(float(top - low), 1e-6))[..., None]


CHANGES: dict[str, Change] = {
    change.__name__: change
    for change in (
        *(gaussian_noise, shot_noise, impulse_noise),
        *(defocus_blur, glass_blur, motion_blur, zoom_blur),
        *(snow, frost, fog, brightness),
        *(contrast, elastic_transform, pixelate, jpeg_compression),
    )
}
