"""What demos share: runs whose folders are gone afterwards, what their models answer, and charts as pictures."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from polyfed.comparison.folder import ComparisonFolder
from polyfed.comparison.grid import make_grid
from polyfed.comparison.run import run_cells
from polyfed.config import Config, Tree, make_config, merge
from polyfed.data.samples import Samples
from polyfed.engine.local import Serial
from polyfed.engine.memory import MemoryStore
from polyfed.engine.rounds import Run
from polyfed.engine.run_folder import RunFolder
from polyfed.engine.work import Job, Outcome, World, device_of
from polyfed.measure.watch import Silent
from polyfed.use.replay import restored

BATCH = 128


@contextmanager
def runs_of(common: Tree, methods: Mapping[str, Any], seed: int) -> Iterator[dict[str, RunFolder]]:
    """Run methods on the same experiment; those on top of another take its rounds. Give their folders by name."""
    with TemporaryDirectory() as folder:
        labels = {f"row{place}": name for place, name in enumerate(methods)}
        sections = {label: {"method": _section(methods[name])} for label, name in labels.items()}
        rows = [{"name": label, **merge(common, own)} for label, own in sections.items()]
        grid = make_grid({"rows": rows, "seeds": [seed], "jobs": 1})
        place = ComparisonFolder.open(grid, Path(folder) / "runs")
        for error in run_cells(place, Silent(), None).values():
            raise error
        yield {labels[cell.row]: place.run(cell) for cell in grid.cells}


def _section(method: Any) -> Tree:
    return {"name": method} if isinstance(method, str) else dict(method)


class Personalised(World):
    """A world in which every evaluation is of what `finish` would make; it is made on a copy that nobody keeps."""

    def _evaluate(self, job: Job, blob: bytes | None) -> Outcome:
        if job.round > self.config.rounds:
            return super()._evaluate(job, blob)
        client = self.client(replace(job, kind="finish"), blob)
        self.method.adapt(client)
        self.method.finish(client)
        outcome = Outcome(job.client)
        self._measure(client, job, outcome)
        return outcome


class _PersonalisedCrew(Serial):
    """Who works in such a world."""

    def begin(self, config: Config, world: World, store: MemoryStore) -> None:
        self.world, self.store = Personalised(config, device=device_of(config.device)), store


@contextmanager
def personalised_run(tree: Tree, seed: int) -> Iterator[RunFolder]:
    """Run an experiment in which every evaluation is after full personalisation, on one core."""
    config = make_config(tree, {"seed": seed})
    with TemporaryDirectory() as folder:
        made = RunFolder.create(config, Path(folder) / "run")
        Run(config, made, _PersonalisedCrew(), Silent()).go()
        yield made


def answers(folder: RunFolder) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Of a finished run, for every client: its id, the logits of its model on its local test, and the labels."""
    run = restored(make_config(folder.tree()), folder, None)
    for job in run.jobs("evaluate", run.config.rounds + 1, run.roster.participants):
        client = run.world.client(job, run.store.get(job.client, job.version))
        run.method.adapt(client)
        test = run.world.federation.clients[job.client].test
        yield job.client, logits_of(run.method.predictor(client), test), test.y
    run.world.resident.reset()


def logits_of(model: nn.Module, samples: Samples) -> Tensor:
    """What a model answers to some samples."""
    with torch.inference_mode():
        parts = torch.arange(len(samples)).split(BATCH)
        return torch.cat([model.eval()(samples.take(part)[0]) for part in parts])
