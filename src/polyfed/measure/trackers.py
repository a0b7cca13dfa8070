"""Trackers: thin adapters that copy a run's records elsewhere while it runs; the files on disk stay the truth."""

import csv
import io
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol, cast, get_args
from uuid import uuid4

from polyfed.config import Config, flatten, write_yaml
from polyfed.errors import UsageError
from polyfed.files import Place, write_file
from polyfed.measure.watch import Watch
from polyfed.registry import Registry, Spec, param

# read when they are imported: no telemetry, and files instead of a server
ALONE = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "MLFLOW_ALLOW_FILE_STORE": "true"}
Mode = Literal["online", "offline", "disabled", "shared"]  # of Weights & Biases
QUIET = {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}


class Book(Protocol):
    """What a tracker writes into while a run goes on."""

    def write(self, round: int, numbers: Mapping[str, float]) -> None:
        """The numbers of one measure after a round, by name."""

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """The run is over, or stopped before its end (no summary)."""


class Tracker(Spec):
    """Where a run's numbers are copied to."""

    def open(self, run: Place, config: Config, after: int) -> Book | None:
        """A book for what comes after a round; None: nobody tracks."""
        return None


trackers = Registry("track", "polyfed.measure.trackers", Tracker)
tracker = trackers.register


@tracker("none")
class Nobody(Tracker):
    """No tracker."""


class InFolder(Tracker):
    """A tracker that writes files."""

    dir: Path | None = param(None, "where it writes; by default a folder in the run's own directory")

    def reaches(self) -> str | None:
        """Where it writes, if not in the run."""
        return None if self.dir is None else str(self.dir)


@tracker("tensorboard")
class TensorBoard(InFolder):
    """Event files for TensorBoard, one folder a run."""

    def open(self, run: Place, config: Config, after: int) -> Book:
        """TensorBoard's writer."""
        where = _within(run, "tensorboard") if self.dir is None else self.dir / run.path.name
        return _Events(where, config, after)


@tracker("mlflow")
class MLflow(InFolder):
    """A run in an MLflow file store; many runs share a store if they are given one `dir`."""

    experiment: str = param("polyfed", "the MLflow experiment it belongs to")

    def open(self, run: Place, config: Config, after: int) -> Book:
        """A run in the store."""
        where = _within(run, "mlflow") if self.dir is None else self.dir
        return _Store(where.resolve(), self.experiment, run, config)


@tracker("wandb")
class WeightsAndBiases(InFolder):
    """A run of Weights & Biases, in files; it is sent only if you ask for `online` here or in WANDB_MODE."""

    project: str = param("polyfed", "the project it belongs to")
    mode: Literal["offline", "online"] | None = param(None, "offline or online; by default $WANDB_MODE, else offline")

    def open(self, run: Place, config: Config, after: int) -> Book:
        """A run in the folder `wandb` of the run's directory, or of `dir`."""
        # each sitting has a new folder in it, where wandb leaves a link to a log of its own
        where = _within(run, "wandb", depth=1).parent if self.dir is None else self.dir
        mode = self.mode or os.environ.get("WANDB_MODE") or "offline"
        if mode not in get_args(Mode):
            raise UsageError(f"$WANDB_MODE must be one of {', '.join(get_args(Mode))} (got {mode!r})")
        return _Bias(where.resolve(), self.project, cast(Mode, mode), run, config, after)

    def reaches(self) -> str | None:
        """Where it writes, if not in the run, or that it sends."""
        return "the server of Weights & Biases" if self.mode == "online" else super().reaches()


def _within(run: Place, name: str, depth: int | None = None) -> Path:
    """A folder of the run that a tracker's library writes into by itself; no link may lead it elsewhere."""
    (run / name).refuse_links(depth)
    return run.path / name


class _Events:
    """TensorBoard's writer."""

    def __init__(self, where: Path, config: Config, after: int):
        from torch.utils.tensorboard import SummaryWriter

        # what was written after the checkpoint that the run resumed from is done again
        self.writer: Any = SummaryWriter(str(where), purge_step=after + 1 if after else None)
        if not after:
            self.writer.add_text("config", f"```\n{write_yaml(config.dump())}```", 0)

    def write(self, round: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, round)
        self.writer.flush()

    def close(self, summary: Mapping[str, Any] | None) -> None:
        self.writer.close()


class _Store:
    """A run of MLflow's; its id is kept beside the config, so that a resumed run goes on in it."""

    def __init__(self, where: Path, experiment: str, run: Place, config: Config):
        os.environ.update(ALONE)
        logging.getLogger("mlflow").setLevel(logging.ERROR)
        from mlflow.tracking import MlflowClient

        where.mkdir(parents=True, exist_ok=True)
        self.client: Any = MlflowClient(tracking_uri=where.as_uri())
        self.kept = run / "mlflow.json"
        self.id = self._existing_run() or self._new(experiment, run, config)
        self.client.update_run(self.id, status="RUNNING")

    def _existing_run(self) -> str | None:
        try:
            return str(self.client.get_run(json.loads(self.kept.read_text())["run"]).info.run_id)
        except Exception:  # none yet, or its store is gone
            return None

    def _new(self, experiment: str, run: Place, config: Config) -> str:
        from mlflow.entities import Param, RunTag

        known = self.client.get_experiment_by_name(experiment)
        place = known.experiment_id if known else self.client.create_experiment(experiment)
        made = self.client.create_run(place, run_name=run.path.name)
        params = [Param(key, str(value)[:5000]) for key, value in flatten(config.dump()).items()]
        tags = {"run": str(run.path), "method": config.method.name, "data": config.data.name, "tag": config.tag}
        self.client.log_batch(made.info.run_id, params=params, tags=[RunTag(k, v) for k, v in tags.items()])
        write_file(self.kept, json.dumps({"run": made.info.run_id}).encode())
        return str(made.info.run_id)

    def write(self, round: int, numbers: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self.client.log_batch(self.id, metrics=[Metric(name, value, now, round) for name, value in numbers.items()])

    def close(self, summary: Mapping[str, Any] | None) -> None:
        if summary is not None:
            self.client.set_tag(self.id, "fingerprint", summary["fingerprint"])
        self.client.set_terminated(self.id, status="KILLED" if summary is None else "FINISHED")


class _Bias:
    """A run of Weights & Biases; its id is kept beside the config, so that a resumed run is a part of it."""

    def __init__(self, where: Path, project: str, mode: Mode, run: Place, config: Config, after: int):
        for key, value in QUIET.items():
            os.environ.setdefault(key, value)
        import wandb

        where.mkdir(parents=True, exist_ok=True)
        alone = {
            "symlink": False,
            "disable_git": True,
            "x_disable_stats": True,
            "x_disable_meta": True,
            "x_disable_machine_info": True,
            "x_save_requirements": False,
            "x_sync_dir_suffix": f"after-{after}",  # two sittings may begin in one second
        }
        self.run: Any = wandb.init(
            project=project,
            name=run.path.name,
            id=self._id(run / "wandb.json"),
            resume="allow",
            mode=mode,
            dir=str(where),
            tags=[config.tag[:64]] if config.tag else None,
            config=config.dump(),
            settings=wandb.Settings(**alone, console="off", silent=True),
        )
        # not its own step, which never goes back: what came after the last checkpoint is written again
        self.run.define_metric("*", step_metric="round")

    @staticmethod
    def _id(kept: Place) -> str:
        if not kept.exists():
            write_file(kept, json.dumps({"run": uuid4().hex[:8]}).encode())
        return str(json.loads(kept.read_text())["run"])

    def write(self, round: int, numbers: Mapping[str, float]) -> None:
        self.run.log({"round": round, **numbers})

    def close(self, summary: Mapping[str, Any] | None) -> None:
        if summary is not None:
            self.run.summary["fingerprint"] = summary["fingerprint"]
        self.run.finish(exit_code=0 if summary is not None else 1)


class Tracked:
    """A watch in front of another that copies new rows of rounds.csv; a tracker that fails is left out from then on."""

    def __init__(self, watch: Watch, config: Config, run: Place, after: int, complain: Callable[[str], None]):
        self.watch, self.name, self.complain = watch, config.track.name, complain
        self.rows = _Rows(run / "rounds.csv")
        self.book: Book | None = None
        self.book = self._tried(config.track.open, run, config, after)

    def round(self, done: int, rounds: int, numbers: dict[str, Any]) -> None:
        """A round is committed."""
        self.watch.round(done, rounds, numbers)
        self.copy()

    def say(self, text: str) -> None:
        """Pass the line on."""
        self.watch.say(text)

    def copy(self) -> None:
        """Copy what was recorded since the last call into the book."""
        for row in self.rows.new():
            at, measure = int(row.pop("round")), row.pop("measure")
            if self.book is not None:
                self._tried(self.book.write, at, {f"{measure}/{k}": float(v) for k, v in row.items() if v})

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """Copy the last rows and close the book."""
        self.copy()
        if self.book is not None:
            self._tried(self.book.close, summary)

    def _tried(self, do: Callable[..., Any], *given: Any) -> Any:
        try:
            return do(*given)
        except Exception as error:  # a tracker's library may raise anything, and the run goes on
            self.book = None
            cure = "; pip install 'polyfed[track]'" if isinstance(error, ImportError) else ""
            what = str(error).splitlines()[0] if str(error) else type(error).__name__
            self.complain(f"the tracker '{self.name}' is left out from here on: {what}{cure}")


class _Rows:
    """The rows appended to a CSV file since it was last looked at."""

    def __init__(self, path: Place):
        self.path = path
        self.seen = path.size()

    def new(self) -> Iterator[dict[str, str]]:
        if not self.path.exists():
            return
        with self.path.open() as file:
            head = file.readline().decode().strip().split(",")
            file.seek(max(self.seen, file.tell()))
            text = file.read().decode()
            self.seen = file.tell()
        yield from csv.DictReader(io.StringIO(text), head)


@contextmanager
def tracked(
    watch: Watch,
    config: Config,
    run: Place,
    after: int,
    complain: Callable[[str], None],
    result: Callable[[], Mapping[str, Any] | None],
) -> Iterator[Watch]:
    """Who looks on meanwhile: this watch, with the run's tracker before it if there is one.

    The tracker gets what comes after the round `after`; `complain` is told if it fails; `result` is the run's summary,
    if it has one in the end.
    """
    if isinstance(config.track, Nobody):
        yield watch
        return
    following = Tracked(watch, config, run, after, complain)
    try:
        yield following
    finally:
        following.close(result())
