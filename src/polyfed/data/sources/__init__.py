"""Where samples come from: named data sets, folders, arrays."""

from polyfed.data.sources import arrays, cifar, digits, folder, har, idx, manifest, streets
from polyfed.data.sources.base import Dataset, Source, load_cached, source, sources

__all__ = [
    "Dataset",
    "Source",
    "arrays",
    "cifar",
    "digits",
    "folder",
    "har",
    "idx",
    "load_cached",
    "manifest",
    "source",
    "sources",
    "streets",
]
