"""Text as token ids, without a vocabulary that anybody had to learn from other people's text."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Literal

import numpy as np

from polyfed.data.sources.base import Dataset
from polyfed.errors import DataError
from polyfed.registry import Typed, param

BYTES = 257  # padding and the 256 bytes
EXACT = 1 << 24  # whole numbers up to here are exact in float32


class Tokenizer(Typed):
    """Splits text into lower-case words or into bytes, and numbers them; 0 is padding.

    By default a word's id is a hash of it: every site computes the same one, and no list of words has to be collected
    from the clients' texts, which would tell who writes what. Two words may share an id. Where a vocabulary is given,
    its words have ids from 2 on, and any other word has id 1.
    """

    by: Literal["words", "bytes"] = param("words", "what a token is")
    ids: int = param(4096, "kinds of tokens, padding included, to which words are hashed", ge=2)
    length: int = param(64, "tokens of a text; longer texts are cut, shorter ones padded", ge=1)
    vocabulary: tuple[str, ...] | None = param(None, "the words that have ids of their own")

    @property
    def kinds(self) -> int:
        """How many ids there are."""
        if self.by == "bytes":
            return BYTES
        return self.ids if self.vocabulary is None else len(self.vocabulary) + 2

    def rows(self, texts: Sequence[str]) -> tuple[np.ndarray, dict[str, int]]:
        """Texts as int64 [N, length], and how many were cut or have no token at all."""
        x, notes = np.zeros((len(texts), self.length), np.int64), {"texts_cut": 0, "texts_empty": 0}
        place = {word: at for at, word in enumerate(self.vocabulary or (), 2)}
        for row, text in zip(x, texts, strict=True):
            found = self._ids(text, place)
            notes["texts_cut"] += len(found) > self.length
            notes["texts_empty"] += not found
            row[: len(found)] = found[: self.length]
        return x, {name: count for name, count in notes.items() if count}

    def _ids(self, text: str, place: dict[str, int]) -> list[int]:
        if self.by == "bytes":
            return [1 + byte for byte in text.encode()]
        words = text.lower().split()
        return [place.get(word, 1) if self.vocabulary is not None else hashed(word, self.ids) for word in words]


@lru_cache(1 << 16)
def hashed(word: str, ids: int) -> int:
    """The id of a word, from 1 to ids - 1: the same on every machine and in every process."""
    return 1 + int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "big") % (ids - 1)


def as_tokens(data: Dataset) -> Dataset:
    """Samples that were given as numbers, as token ids."""
    if data.images or data.x.ndim != 2 or not np.array_equal(data.x, np.rint(data.x)) or data.x.max() >= EXACT:
        raise DataError(f"{data.name}: data.tokens=true takes whole numbers [N, length] from 0 to {EXACT - 1}")
    return replace(data, x=data.x.astype(np.int64))
