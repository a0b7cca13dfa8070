"""A run on disk, read."""

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from polyfed.api.given import config_of_run
from polyfed.comparison.folder import Found
from polyfed.config import ABSENT, Config, Tree, flatten, identity
from polyfed.engine.run_folder import RunFolder
from polyfed.engine.work import federation_of
from polyfed.errors import DataError, UsageError, did_you_mean, reading
from polyfed.measure.metrics import round_of_arrival
from polyfed.models.per_client import models_of
from polyfed.report.tables import comparison_table
from polyfed.use.predictor import Predictor
from polyfed.use.replay import replay


class Result:
    """A run on disk, read: its numbers, its records, its models."""

    def __init__(self, path: Path):
        self.path, self.folder = path, RunFolder(path)

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.folder.result() is not None

    @property
    def config(self) -> Tree:
        """The complete config."""
        tree = self.folder.tree()
        missing = [key for key in identity(dict.fromkeys(Config.model_fields)) if key not in tree and key not in ABSENT]
        if missing:
            raise DataError(f"the run at '{self.path}' is corrupt: config.yaml has no '{missing[0]}'")
        return tree

    @property
    def round(self) -> int:
        """The last checkpointed round."""
        found = self.folder.checkpoints()
        return int(found[-1].split("-")[1]) if found else 0

    @property
    def summary(self) -> dict[str, Any]:
        """Every number of the finished run."""
        found = self.folder.result()
        if found is None:
            raise DataError(f"the run at '{self.path}' is not finished; go on with: polyfed resume {self.path}")
        return found

    def __getitem__(self, key: str) -> Any:
        """A number by its place: result["personal.accuracy"]."""
        value: Any = self.summary
        for word in key.split("."):
            if not isinstance(value, Mapping) or word not in value:
                raise UsageError(f"the run has no '{key}'; {_what_there_is(key, self.summary)}")
            value = value[word]
        return value

    @property
    def remarks(self) -> list[str]:
        """What is wrong with the run's files, though they can be read: records that are gone, another config."""
        from polyfed.report.runs import read

        return read(self.path).remarks()

    @property
    def fingerprint(self) -> str:
        """The hash of everything that was learnt."""
        return self.summary["fingerprint"]

    def records(self, table: str) -> Any:
        """A table of records as a pandas DataFrame: rounds, clients, classes, training or spent."""
        from polyfed.report.runs import records

        if not (self.folder.place / f"{table}.csv").exists():
            raise DataError(f"the run at '{self.path}' has no {table}.csv")
        return records(self.path, table)

    @property
    def rounds(self) -> Any:
        """Named numbers after each evaluated round."""
        return self.records("rounds")

    @property
    def clients(self) -> Any:
        """Named numbers of each client after each evaluated round."""
        return self.records("clients")

    def counts(self) -> dict[str, np.ndarray]:
        """The final confusion counts per client, as arrays [client, true, predicted]."""
        found = self.folder.counts()
        if found is None:
            raise DataError(f"the run at '{self.path}' has no counts.npz")
        return found

    def round_of_arrival(self, level: float, measure: str = "global") -> int | None:
        """RoA@x: the first evaluated round whose accuracy is at least `level`; None if never."""
        rows = self.rounds[self.rounds["measure"] == measure]
        if rows.empty:
            raise UsageError(
                f"the run has no measure '{measure}'; {did_you_mean(measure, set(self.rounds['measure']))}"
            )
        return round_of_arrival(list(zip(rows["round"], rows["accuracy"], strict=True)), level)

    def client(self, who: int | str, trust: bool = False, **objects: Any) -> Predictor:
        """The model that answers for a client, by its name or its id; for `trust` see `resume`."""
        id = self.folder.client(who)
        return replay(config_of_run(self.folder, objects, trust), self.folder, id)

    def global_model(self, trust: bool = False, **objects: Any) -> Predictor:
        """The model that answers for all."""
        return replay(config_of_run(self.folder, objects, trust), self.folder, None)

    def audit(
        self,
        client: int,
        images: int = 1,
        steps: int = 500,
        fresh: bool = False,
        tv: float = 0.01,
        trust: bool = False,
        **objects: Any,
    ) -> dict[str, Any]:
        """What a curious server reads from an upload of this client: labels and images, written to `audit/`.

        Args:
            client: The client whose round is repeated.
            images: How many of its samples the round is repeated on, as one step of one batch.
            steps: How long images are searched for.
            fresh: Whether it is the first round, before anybody has trained; by default the one after the last.
            tv: How strongly smooth images are preferred; less finds sharper ones where nothing is hidden.
            trust: See `resume`.
            **objects: Data or models that the run was given as Python objects.
        """
        from polyfed.threats.audit import Search
        from polyfed.use.audit import audit

        config = config_of_run(self.folder, objects, trust)
        return audit(config, self.folder, client, images, Search(steps, tv, config.seed), fresh)

    def export(
        self,
        form: str,
        client: int | str | None = None,
        out: str | Path | None = None,
        trust: bool = False,
        **objects: Any,
    ) -> Path:
        """Write a client's model, or the global one, as a directory of its own: safetensors, onnx or torch-export."""
        from polyfed.use.card import card
        from polyfed.use.export import export

        id = None if client is None else self.folder.client(client)
        config = config_of_run(self.folder, objects, trust)
        who = "global" if id is None else f"client-{self.folder.called(id)}"
        where = self._export_folder() / f"{who}-{form}" if out is None else Path(out)
        predictor, data = replay(config, self.folder, id), federation_of(config)
        own = config.model.common if id is None else models_of(config.model, data.split.names)[id]
        told = config.model_copy(update={"model": own}).dump()

        def text(worst: float) -> str:
            with reading(f"the run at '{self.path}'"):
                return card(self.folder, told, id, predictor, form, worst)

        return export(config, own, predictor, form, where, data.dataset.x, text)

    def _export_folder(self) -> Path:
        place = self.folder.place / "export"
        place.exists()  # a link is refused
        return place.path

    def table(self) -> str:
        """Its numbers as a table."""
        return comparison_table([Found(self.summary["method"], self.summary["seed"], self.summary)]).text()

    def __repr__(self) -> str:
        return f"<run {self.path}{'' if self.finished else ', not finished'}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: its table, once it is finished."""
        from polyfed.report.notebook import as_html

        made = None
        if self.finished:
            made = comparison_table([Found(self.summary["method"], self.summary["seed"], self.summary)])
        return as_html(repr(self), made)


def _what_there_is(key: str, summary: Mapping[str, Any]) -> str:
    """The number nearest to a misspelt one, and all there are."""
    names = list(flatten(dict(summary)))
    near = did_you_mean(key, names) if get_close_matches(key, names, n=1, cutoff=0.5) else ""
    return f"{near}{' ' if near else ''}It has {', '.join(names)}"
