"""The memory of a step: kept where there is glibc, and nothing happens elsewhere."""

import ctypes

import pytest
from benchmarks.measure import HEAP

from polyfed.engine import heap


def test_both_limits_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    class Libc:
        def mallopt(self, name: int, value: int) -> int:
            asked.append((name, value))
            return 1

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Libc())
    heap.keep_freed_memory()
    assert asked == [(-3, heap.LARGE), (-1, heap.KEPT)]


def test_nothing_happens_without_glibc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    heap.keep_freed_memory()


def test_the_benchmarks_give_the_limit_the_same() -> None:
    assert {"MALLOC_MMAP_THRESHOLD_": str(heap.LARGE), "MALLOC_TRIM_THRESHOLD_": str(heap.KEPT)} == HEAP
