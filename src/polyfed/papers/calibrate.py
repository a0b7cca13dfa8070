"""How long a cell takes on a machine: a few timed steps of its model on its data, remembered for next time.

It is an estimate of training and evaluating one model. Methods that do more (a second model, personalisation at every
evaluation) take longer; where the store has cells of a row, their minutes are taken instead. The times of this machine
lie in the user's cache; a store may have those of a machine, for pages that are the same wherever they are made.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from polyfed.config import Config
from polyfed.engine.run_folder import environment
from polyfed.errors import PolyfedError
from polyfed.files import write_file
from polyfed.papers.cell import PaperCell, digest
from polyfed.parts.chunks import cores

STEPS = 4  # that are timed, after one that is not
SECONDS = 3.0  # after which no further step is taken
FORWARD = 1 / 3  # of a step's time
IN_STORE = "calibration.json"
UNTIMED = ("limit", "augment", "root", "file")  # keys of data on which a step's time hardly depends


def cache_file() -> Path:
    """Where measured times are remembered: in the user's cache directory."""
    above = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(above).expanduser() / "polyfed" / "calibration.json"


class Calibration:
    """Times that were measured on one machine: this one, where they lie in the user's cache."""

    def __init__(self, file: Path, machine: dict[str, str] | None = None):
        """Args: the file; and the machine whose times are wanted, where it matters."""
        self.file = file
        self.machine, self.known = self._read()
        if machine is not None and self.machine != machine:
            self.machine, self.known = machine, {}

    @staticmethod
    def here() -> "Calibration":
        """Those of this machine."""
        return Calibration(cache_file(), this_machine())

    @staticmethod
    def of_store(store: Path, measuring: bool = False) -> "Calibration":
        """Those that a store has, of whichever machine; only those of this one, where more are to be measured."""
        return Calibration(store / IN_STORE, this_machine() if measuring else None)

    def _read(self) -> tuple[dict[str, str], dict[str, Any]]:
        try:
            found = json.loads(self.file.read_text(encoding="utf-8"))
            return dict(found["machine"]), dict(found["known"])
        except (OSError, ValueError, TypeError, KeyError):
            return {}, {}

    def minutes(self, cell: PaperCell, measure: bool = False) -> float | None:
        """What a cell takes on one core; None where its data are not here, and before it was measured."""
        each = [times and self._minutes(config, times, measure) for config, times in cell.trained]
        return None if None in each else sum(minutes for minutes in each if minutes is not None)

    def _minutes(self, config: Config, times: float, measure: bool) -> float | None:
        sizes = self._get(_sizes_key(config), measure, lambda: _sizes(config))
        step = self._get(_step_key(config), measure, lambda: _seconds_per_sample(config))
        return None if sizes is None or step is None else times * _work(config, sizes) * step / 60

    def _get(self, key: str, measure: bool, how: Callable[[], Any]) -> Any:
        if key not in self.known and measure:
            try:
                self.known[key] = how()
            except PolyfedError:  # the data are not here, or the model cannot take them: the run says so
                return None
            self._save()
        return self.known.get(key)

    def _save(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        told = {"machine": self.machine, "known": self.known}
        write_file(self.file, (json.dumps(told, indent=0, sort_keys=True) + "\n").encode(), durable=False)


def this_machine() -> dict[str, str]:
    """The machine, as far as times depend on it."""
    here = environment()
    return {name: str(here[name]) for name in ("cpu", "torch")}


def at_once(minutes: float) -> float:
    """Minutes of one core as minutes of this machine, whose cores run cells side by side."""
    return minutes / cores()


def _sizes_key(config: Config) -> str:
    tree = config.dump()
    return "sizes " + digest([tree["data"], tree["split"]])


def _step_key(config: Config) -> str:
    tree = config.dump()
    data = {key: value for key, value in tree["data"].items() if key not in UNTIMED}
    return "seconds " + digest([tree["model"], data, config.train.batch])


def _sizes(config: Config) -> list[int]:
    """Training samples of all clients, and samples of local tests and the global test."""
    from polyfed.engine.work import federation_of

    told = federation_of(config).describe()
    clients = told["clients"]
    train, test = (sum(int(one[part]) for one in clients) for part in ("train", "test"))
    return [train, test, int(told["global_test"])]


def _work(config: Config, sizes: list[int]) -> float:
    """Samples that are trained on in a run, with those that are only looked at counted by what they cost."""
    train, local, everybody = sizes
    clients = config.split.clients or 20
    least = clients * config.train.min_steps * config.train.batch
    trained = config.rounds * config.participation * max(train * config.train.epochs, least)
    apart = clients if config.eval.classes is True else 0  # every client answers the global test, too
    evaluations = -(-config.rounds // config.eval.every)
    return trained + FORWARD * evaluations * (2 * local + (1 + apart) * everybody)


def _seconds_per_sample(config: Config) -> float:
    """A few steps of gradient descent in this process, with one thread."""
    import torch
    import torch.nn.functional as F

    from polyfed.engine.threads import threads
    from polyfed.engine.work import federation_of

    data = federation_of(config)
    batch = config.train.batch
    net = config.model.build(data.shape, data.classes)
    x = torch.zeros(batch, *data.shape).to(memory_format=torch.channels_last if len(data.shape) == 3 else None)
    y = torch.zeros((batch, *data.shape[1:]) if data.masks else (batch,), dtype=torch.long)
    taken = []
    with threads(1):
        for _ in range(STEPS + 1):
            began = time.process_time()
            F.cross_entropy(net(x), y).backward()
            taken.append(time.process_time() - began)
            if sum(taken) > SECONDS:
                break
    return float(f"{min(taken[1:] or taken) / batch:.3g}")
