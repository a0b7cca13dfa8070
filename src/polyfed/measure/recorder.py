"""The records of a run: plain CSV files that grow by appending and are cut back to a checkpoint at resume."""

import csv
import io
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from polyfed.measure.metrics import accuracy, balanced, group_recalls, recalls

FIELDS = {
    "rounds": ["round", "measure", "accuracy", "balanced", "head", "mid", "tail", "std", "worst10", "best10"],
    "clients": ["round", "measure", "client", "name", "samples", "accuracy", "balanced", "head", "mid", "tail"],
    "classes": ["round", "measure", "class", "samples", "recall"],
    "training": [
        "round", "attempt", "client", "status", "reason", "samples", "steps", "loss", "skipped_batches",
        "eval_mode_steps", "bytes_down", "bytes_up", "seconds",
    ],
    "spent": ["round", "seconds", "train", "eval", "server", "bytes_up", "bytes_down", "bytes_eval"],
}  # fmt: skip


class Recorder:
    """Appends rows to rounds.csv, clients.csv, classes.csv, training.csv and spent.csv in a run directory."""

    def __init__(self, folder: Path, groups: Mapping[str, list[int]], names: Mapping[int, str]):
        self.folder, self.groups, self.names = folder, groups, names

    def path(self, table: str) -> Path:
        """Where a table lies."""
        return self.folder / f"{table}.csv"

    def lengths(self) -> dict[str, int]:
        """Bytes of each table."""
        return {table: self.path(table).stat().st_size for table in FIELDS if self.path(table).exists()}

    def sync(self) -> None:
        """Every table is on disk for certain."""
        for table in self.lengths():
            with self.path(table).open("rb+") as file:
                os.fsync(file.fileno())

    def cut(self, lengths: Mapping[str, int]) -> None:
        """Forget what was written after a checkpoint."""
        for table in FIELDS:
            length = lengths.get(table, 0)
            if self.path(table).exists() and self.path(table).stat().st_size > length:
                os.truncate(self.path(table), length)

    def append(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write rows in one go."""
        text = io.StringIO()
        writer = csv.DictWriter(text, FIELDS[table], restval="", lineterminator="\n")
        path = self.path(table)
        if not path.exists() or path.stat().st_size == 0:
            writer.writeheader()
        writer.writerows(rows)
        with path.open("a", encoding="utf-8") as file:
            file.write(text.getvalue())

    def clients(self, round: int, measure: str, tables: Mapping[int, np.ndarray]) -> None:
        """One row per client, and one per class over all of them."""
        rows = [self._client_row(round, measure, k, t) for k, t in sorted(tables.items())]
        self.append("clients", rows)
        if tables:
            self.classes(round, measure, np.sum(list(tables.values()), axis=0))

    def classes(self, round: int, measure: str, counts: np.ndarray) -> None:
        """One row per class."""
        found = zip(counts.sum(1).tolist(), recalls(counts).tolist(), strict=True)
        self.append(
            "classes",
            [
                {"round": round, "measure": measure, "class": c, "samples": n, "recall": "" if n == 0 else r}
                for c, (n, r) in enumerate(found)
            ],
        )

    def _client_row(self, round: int, measure: str, client: int, counts: np.ndarray) -> dict[str, Any]:
        row: dict[str, Any] = {"round": round, "measure": measure, "client": client, "name": self.names[client]}
        total = int(counts.sum())
        if total:
            row |= {"accuracy": accuracy(counts), "balanced": balanced(counts), **group_recalls(counts, self.groups)}
        return row | {"samples": total}

    # ---- beside the tables

    def spent(self, round: int, seconds: Mapping[str, float], traffic: Mapping[str, int]) -> None:
        """What the run had spent when a round was committed."""
        row = {("seconds" if phase == "total" else phase): f"{spent:.3f}" for phase, spent in seconds.items()}
        self.append("spent", [{"round": round, **row, **{f"bytes_{way}": count for way, count in traffic.items()}}])

    def arrays(self, round: int, records: dict[str, np.ndarray]) -> None:
        """What a method recorded for pictures in this round; the next round begins with nothing."""
        for name, array in records.items():
            (self.folder / "arrays").mkdir(exist_ok=True)
            np.save(self.folder / "arrays" / f"{name}-{round:06d}.npy", array, allow_pickle=False)
        records.clear()

    def federation(self, clients: Iterable[Any], data: Any) -> None:
        """Who takes part and holds what, as far as they told."""
        rows = [{"id": k.id, "name": k.name, "train": k.n, "counts": k.counts} for k in clients]
        told = {"class_names": data.class_names, "heldout": data.heldout, "clients": rows}
        aside = self.folder / ".federation.json.tmp"  # renamed, so that who looks on sees all of it or nothing
        aside.write_text(json.dumps(told), encoding="utf-8")
        aside.replace(self.folder / "federation.json")
