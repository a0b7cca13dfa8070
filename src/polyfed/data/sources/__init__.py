"""Where samples come from: named data sets, folders, arrays."""

from polyfed.data.sources import (
    arrays,
    cifar,
    digits,
    domains,
    folder,
    har,
    idx,
    leaf,
    manifest,
    motion,
    photographs,
    streets,
    text,
)
from polyfed.data.sources.base import Dataset, Source, load_cached, source, sources

__all__ = [
    "Dataset",
    "Source",
    "arrays",
    "cifar",
    "digits",
    "domains",
    "folder",
    "har",
    "idx",
    "leaf",
    "load_cached",
    "manifest",
    "motion",
    "photographs",
    "source",
    "sources",
    "streets",
    "text",
]
