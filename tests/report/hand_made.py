"""Runs written by hand, so that every number in a figure is known."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyfed.config import make_config, write_yaml
from polyfed.data.colours import mask_png, picture_png
from polyfed.measure.recorder import FIELDS, Recorder

Rows = Sequence[Mapping[str, Any]]
CLASSES = ("cat", "dog", "owl")
COUNTS = ([6, 0, 1], [4, 3, 0])  # what the two clients hold: totals 10, 3, 1
NAMES = ("clinic", "<b>lab</b>")


def write_run(
    path: Path,
    method: str = "fedavg",
    seed: int = 0,
    finished: bool = True,
    federation: bool = True,
    arrays: Mapping[str, Any] | None = None,
    keys: Mapping[str, Any] | None = None,
    samples: Mapping[str, bytes] | None = None,
    **tables: Rows,
) -> Path:
    """A run directory with these records."""
    path.mkdir(parents=True)
    config = make_config({"method": method, "seed": seed, "rounds": 2, "split": {"clients": 2}}, dict(keys or {}))
    (path / "config.yaml").write_text(write_yaml(config.dump()))
    (path / "environment.json").write_text(json.dumps({"torch": "1", "command": ["/x/polyfed", "run", "a b"]}))
    if federation:
        clients = [{"id": k, "name": NAMES[k], "train": sum(c), "counts": c} for k, c in enumerate(COUNTS)]
        told = {"class_names": CLASSES, "heldout": [], "clients": clients}
        (path / "federation.json").write_text(json.dumps(told))
    recorder = Recorder(path, {}, {})
    for table, rows in tables.items():
        recorder.append(table, rows)
    if finished:
        (path / "summary.json").write_text(json.dumps(summary(method, seed)))
    for name, array in (arrays or {}).items():
        (path / "arrays").mkdir(exist_ok=True)
        np.save(path / "arrays" / f"{name}.npy", np.array(array), allow_pickle=False)
    for name, content in (samples or {}).items():
        (path / "samples").mkdir(exist_ok=True)
        (path / "samples" / f"{name}.png").write_bytes(content)
    return path


def kept_pictures(right: int) -> dict[str, bytes]:
    """Two pictures of 2 x 4 pixels with masks of three classes, of which the answers have so many pixels right."""
    made = {}
    for place in (3, 7):
        truth = np.array([[0, 0, 1, 1], [2, 2, 1, 255]], np.uint8)
        answer = truth.copy()
        answer.flat[right:] = (answer.flat[right:] + 1) % 3
        masks = {"truth": truth, "answer": answer}
        made[f"{place:05d}-picture"] = picture_png(np.full((2, 4, 3), 10 * place, np.uint8))
        made |= {f"{place:05d}-{kind}": mask_png(mask, CLASSES) for kind, mask in masks.items()}
    return made


def summary(method: str, seed: int) -> dict[str, Any]:
    """As much of a summary as a table needs."""
    numbers = {"accuracy": 0.5, "head": 0.9, "mid": 0.5, "tail": None, "worst10": 0.25}
    spent = {"bytes": {"up": 1000, "down": 500, "eval": 7}, "seconds": {"total": 2.0}}
    return {"method": method, "seed": seed, "fingerprint": "f" * 8, "global": numbers, "personal": numbers, **spent}


def measured(measure: str, *accuracies: float, start: int = 1, **more: float) -> list[dict[str, Any]]:
    """Rows of rounds.csv: an accuracy a round."""
    return [{"round": start + i, "measure": measure, "accuracy": a, **more} for i, a in enumerate(accuracies)]


def of_clients(measure: str, round: int, *accuracies: float | None) -> list[dict[str, Any]]:
    """Rows of clients.csv for one round."""
    return [
        {"round": round, "measure": measure, "client": k, "name": NAMES[k], "samples": 10, "accuracy": a}
        for k, a in enumerate(accuracies)
    ]


def of_classes(measure: str, round: int, *recalls: float | None) -> list[dict[str, Any]]:
    """Rows of classes.csv for one round."""
    return [{"round": round, "measure": measure, "class": c, "samples": 5, "recall": r} for c, r in enumerate(recalls)]


def spent(*rows: tuple[int, float, int]) -> list[dict[str, Any]]:
    """Rows of spent.csv: round, seconds (a third of them the server's), bytes (a quarter of them up)."""
    return [
        {
            **dict.fromkeys(FIELDS["spent"], 0),
            "round": round,
            "seconds": 100.0,
            "train": 2 * seconds / 3,
            "server": seconds / 3,
            "bytes_up": total // 4,
            "bytes_down": total - total // 4,
            "bytes_eval": 10**9,
        }
        for round, seconds, total in rows
    ]
