"""The records of a run: plain CSV files that grow by appending and are cut back to a checkpoint at resume."""

import csv
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from polyfed.data.colours import colours
from polyfed.files import Place, sync, write_file
from polyfed.measure.metrics import accuracy, balanced, group_recalls, ious, miou, recalls
from polyfed.measure.seconds import PHASES

FIELDS = {
    "rounds": [
        "round", "measure", "accuracy", "balanced", "head", "mid", "tail", "std", "worst10", "best10", "samples",
    ],
    "clients": ["round", "measure", "client", "name", "samples", "accuracy", "balanced", "head", "mid", "tail"],
    "classes": ["round", "measure", "class", "samples", "recall"],
    "training": [
        "round", "attempt", "client", "status", "reason", "samples", "steps", "loss", "skipped_batches",
        "eval_mode_steps", "bytes_down", "bytes_up", "seconds", "attacker", "weight", "suspect",
    ],
    "threats": ["round", "acc", "asr", "attackers", "suspects", "tp", "fp", "fn", "separated", "stopped"],
    "privacy": ["round", "client", "sigma", "q", "steps", "epsilon"],
    "spent": ["round", "seconds", *PHASES, "bytes_up", "bytes_down", "bytes_eval"],
}  # fmt: skip
OF_MASKS = {"rounds": ["miou"], "clients": ["miou"], "classes": ["iou"]}  # what the tables of masks have beside

# columns that records of an earlier version lack
LATER = {"rounds": ("samples",), "training": ("attacker", "weight", "suspect"), "threats": ("stopped",)}


class Recorder:
    """Appends rows to the tables of a run directory: rounds.csv, clients.csv, classes.csv, training.csv and others."""

    def __init__(
        self, folder: Path | Place, groups: Mapping[str, list[int]], names: Mapping[int, str], masks: bool = False
    ):
        self.folder, self.groups, self.names, self.masks = Place.of(folder), groups, names, masks
        self._begun: dict[str, list[str]] = {}  # the columns of tables that are already there

    def path(self, table: str) -> Place:
        """Where a table lies."""
        return self.folder / f"{table}.csv"

    def lengths(self) -> dict[str, int]:
        """Bytes of each table."""
        return {table: self.path(table).size() for table in FIELDS if self.path(table).exists()}

    def sync(self) -> None:
        """Sync every table to disk."""
        for table in self.lengths():
            sync(self.path(table))

    def cut(self, lengths: Mapping[str, int]) -> None:
        """Cut off what was written after a checkpoint."""
        for table in FIELDS:
            length = lengths.get(table, 0)
            if self.path(table).size() > length:
                self.path(table).cut(length)

    def take(self, other: Place, lengths: Mapping[str, int]) -> None:
        """Begin with the records of another run, as far as they are this one's too."""
        self.cut({})
        for table in lengths.keys() & FIELDS.keys():
            self.path(table).append((other / f"{table}.csv").read_bytes()[: lengths[table]])
        for name in (other / "arrays").names():
            (self.folder / "arrays").mkdir()
            write_file(self.folder / "arrays" / name, (other / "arrays" / name).read_bytes(), durable=False)

    def append(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write rows in one go."""
        text = io.StringIO()
        begun, fields = self.path(table).size() > 0, self._fields(table)
        columns = self._columns(table) if begun else fields
        unknown: Literal["raise", "ignore"] = "raise" if columns == fields else "ignore"
        writer = csv.DictWriter(text, columns, restval="", extrasaction=unknown, lineterminator="\n")
        if not begun:
            writer.writeheader()
        writer.writerows(rows)
        self.path(table).append(text.getvalue().encode())

    def _columns(self, table: str) -> list[str]:
        """The columns a table was begun with; a run of an earlier version may have fewer."""
        if table not in self._begun:
            self._begun[table] = self.path(table).read_text().partition("\n")[0].split(",")
        return self._begun[table]

    def _fields(self, table: str) -> list[str]:
        return [*FIELDS[table], *(OF_MASKS.get(table, []) if self.masks else [])]

    def clients(self, round: int, measure: str, tables: Mapping[int, np.ndarray]) -> None:
        """One row per client, and one per class over all of them."""
        rows = [self._client_row(round, measure, k, t) for k, t in sorted(tables.items())]
        self.append("clients", rows)
        if tables:
            self.classes(round, measure, np.sum(list(tables.values()), axis=0))

    def classes(self, round: int, measure: str, counts: np.ndarray) -> None:
        """One row per class."""
        found = zip(counts.sum(1).tolist(), recalls(counts).tolist(), ious(counts).tolist(), strict=True)
        rows = [
            {"round": round, "measure": measure, "class": c, "samples": n, "recall": r, "iou": i}
            if n
            else {"round": round, "measure": measure, "class": c, "samples": n, "recall": "", "iou": ""}
            for c, (n, r, i) in enumerate(found)
        ]
        self.append("classes", rows if self.masks else [{k: v for k, v in row.items() if k != "iou"} for row in rows])

    def _client_row(self, round: int, measure: str, client: int, counts: np.ndarray) -> dict[str, Any]:
        row: dict[str, Any] = {"round": round, "measure": measure, "client": client, "name": self.names[client]}
        total = int(counts.sum())
        if total:
            row |= {"accuracy": accuracy(counts), "balanced": balanced(counts), **group_recalls(counts, self.groups)}
            row |= {"miou": miou(counts)} if self.masks else {}
        return row | {"samples": total}

    # ---- beside the tables

    def spent(self, round: int, seconds: Mapping[str, float], traffic: Mapping[str, int]) -> None:
        """What the run had spent when a round was committed."""
        row = {("seconds" if phase == "total" else phase): f"{spent:.3f}" for phase, spent in seconds.items()}
        self.append("spent", [{"round": round, **row, **{f"bytes_{way}": count for way, count in traffic.items()}}])

    def arrays(self, round: int, records: dict[str, np.ndarray]) -> None:
        """What a method recorded for pictures in this round; the next round begins with nothing."""
        for name, array in records.items():
            (self.folder / "arrays").mkdir()
            content = io.BytesIO()
            np.save(content, array, allow_pickle=False)
            write_file(self.folder / "arrays" / f"{name}-{round:06d}.npy", content.getvalue(), durable=False)
        records.clear()

    def federation(self, clients: Iterable[Any], data: Any) -> None:
        """Who takes part and holds what, as far as they told."""
        rows = [
            {"id": k.id, "name": k.name, "train": k.n, "counts": k.counts, "disclosed": k.disclosed} for k in clients
        ]
        told = {"class_names": data.class_names, "heldout": data.heldout, "clients": rows}
        told |= {"colours": colours(data.class_names).tolist()} if self.masks else {}
        write_file(self.folder / "federation.json", json.dumps(told).encode(), durable=False)
