"""Kinds of parameters that sources and partitions share."""

from typing import Any, Literal

from pydantic import BeforeValidator

# what data.corrupt may say: none, any, a family, or one of its kinds
Kind = Literal[
    "none",
    "any",
    "noise",
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "blur",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "weather",
    "snow",
    "frost",
    "fog",
    "brightness",
    "digital",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
]


def size_or_auto() -> BeforeValidator:
    """A field that is a side, a height and a width, or `auto`."""

    def check(value: Any) -> Any:
        sides = list(value) if isinstance(value, list | tuple) else [value]
        whole = all(isinstance(side, int) and not isinstance(side, bool) and side >= 1 for side in sides)
        if value == "auto" or (whole and (len(sides) == 2 or not isinstance(value, list | tuple))):
            return tuple(value) if isinstance(value, list) else value
        raise ValueError("expected a whole number from 1 on or 'auto', or a height and a width [H, W]")

    return BeforeValidator(check)


def whole_or(*words: str, least: int = 1) -> BeforeValidator:
    """A field that is a whole number from `least` on or one of these words; anything else gets one sentence."""

    def check(value: Any) -> Any:
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= least
        if whole or (isinstance(value, str) and value in words):
            return value
        raise ValueError(f"expected a whole number from {least} on or {' or '.join(map(repr, words))}")

    return BeforeValidator(check)
