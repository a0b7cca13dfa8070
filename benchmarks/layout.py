"""How a machine's cores are used: processes, threads, and the memory format of convolutions."""

import os
from typing import NamedTuple


class Layout(NamedTuple):
    """How the machine is used."""

    processes: int
    threads: int
    channels_last: bool

    def __str__(self) -> str:
        return f"{self.processes}x{self.threads} {'channels-last' if self.channels_last else 'contiguous'}"

    @staticmethod
    def parse(text: str) -> "Layout":
        """The inverse of str."""
        shape, form = text.split()
        processes, threads = map(int, shape.split("x"))
        return Layout(processes, threads, form == "channels-last")


def layouts(channels: bool) -> list[Layout]:
    """One process per core or one thread per core; memory formats differ for images and sequences, not for rows."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    ways = dict.fromkeys([(cores, 1), (1, cores)])
    return [Layout(*way, last) for way in ways for last in ((False, True) if channels else (False,))]
