"""The engines that come with polyfed."""

from polyfed.engine.flower.engine import Flower
from polyfed.engine.local import Local

__all__ = ["Flower", "Local"]
