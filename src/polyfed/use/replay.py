"""A run's models, brought back from its last checkpoint: what answers for a client, or for all."""

import copy

from torch import nn

from polyfed.config import Config
from polyfed.engine.local import Serial
from polyfed.engine.rounds import Run
from polyfed.engine.run_folder import RunFolder
from polyfed.engine.work import World
from polyfed.errors import DataError, UsageError
from polyfed.measure.watch import Silent
from polyfed.models.base import Net
from polyfed.use.predictor import Predictor


class _ReadOnly(RunFolder):
    """The folder of a run that is only read: nothing is written to it."""

    def say(self, text: str) -> None: ...


def restored(config: Config, folder: RunFolder, client: int | None, fresh: bool = False) -> Run:
    """A run as its newest checkpoint has it, or as it began, to be looked into; nothing is written to its folder."""
    if not folder.checkpoints() and not fresh:
        raise DataError(f"the run at '{folder.path}' has no checkpoint yet")
    run = Run(config, _ReadOnly(folder.path), Serial(), Silent())
    run.prepare()
    if fresh:
        run.method.start(run.server)
    else:
        run.restore()
    if client is not None and client not in run.server.clients:
        raise UsageError(f"there is no client {client}; the run has clients 0 to {len(run.server.clients) - 1}")
    return run


def replay(config: Config, folder: RunFolder, client: int | None) -> Predictor:
    """The predictor of a client, or the global one, as the newest checkpoint has it."""
    run = restored(config, folder, client)
    if client is None:
        model = run.method.global_predictor(run.server)
        if model is None:
            raise UsageError(f"method '{run.method.name}' has no global model; ask for a client's")
        return predictor_of(run.world, model)
    job = run.jobs("evaluate", config.rounds + 1, [client])[0]
    ready = run.world.client(job, run.store.get(client, job.version))
    run.method.adapt(ready)
    return predictor_of(run.world, run.method.predictor(ready))


def predictor_of(world: World, model: nn.Module) -> Predictor:
    """A model of this world, ready for new samples."""
    data, source = world.federation, world.config.data
    preparation = data.preparation
    if preparation.images and source.of_pictures and source.size != "auto":
        preparation = preparation.model_copy(update={"any_size": True})  # as its own pictures were read
    kinds = getattr(world.config.model, "kinds", None)
    if preparation.tokens and kinds is not None:  # new ids must be among those the model has
        preparation = preparation.model_copy(update={"reads": {**(preparation.reads or {}), "ids": kinds}})
    model = without_background(model, data.classes)
    return Predictor(model.eval(), preparation, data.class_names, world.config.eval.batch, world.resident.device)


def without_background(model: nn.Module, classes: int) -> nn.Module:
    """The same model without the answer for a background that was learnt as a class of its own; itself without one."""
    if not any(_wider(net, classes) for net in model.modules()):
        return model
    made = copy.deepcopy(model)
    for net in made.modules():
        if _wider(net, classes):
            whole = net.get_submodule("head")
            assert isinstance(whole, nn.Linear)
            narrow = nn.Linear(whole.in_features, classes, bias=whole.bias is not None)
            narrow.load_state_dict({name: value[:classes].clone() for name, value in whole.state_dict().items()})
            net.head = narrow
    return made


def _wider(net: nn.Module, classes: int) -> bool:
    """Whether a network answers with more classes than there are."""
    return isinstance(net, Net) and isinstance(net.head, nn.Linear) and net.head.out_features > classes
