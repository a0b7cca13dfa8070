"""Oracle numbers: what would need the personal parts of all clients together, which no server ever has.

FedCRC compares new clients under the mean of FedPer's personal heads (its Table II). A simulation can compute such a
model because all memories are on its machine; it is measured at the end, under a name of its own, and never sent.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from polyfed.config import Config
from polyfed.errors import UsageError
from polyfed.measure.counts import confusion
from polyfed.measure.metrics import Numbers, client_numbers, global_numbers
from polyfed.message import Memory
from polyfed.methods.base import Method
from polyfed.params import Params, nothing
from polyfed.parts.average import average, shares

if TYPE_CHECKING:
    from polyfed.engine.rounds import Run


def check_oracle(config: Config) -> None:
    """Refuse eval.oracle where there is nothing to average, or where memories are not on this machine."""
    if not config.eval.oracle:
        return
    method: Method = config.method
    if config.engine.name != "local":
        raise UsageError(f"eval.oracle needs all memories on one machine: set engine=local, not {config.engine.name}")
    if config.model.per_client:
        raise UsageError("eval.oracle averages what clients keep, and with model.per_client their models differ")
    if method.personal == nothing or type(method).predictor is not Method.predictor:
        raise UsageError(
            f"eval.oracle averages what a method keeps of its model, and method '{method.name}' keeps no slice that "
            "answers by itself: leave it out, or take fedper or fedrep"
        )


def averaged_personal(run: "Run") -> Params:
    """The shared model with the weighted mean of the personal slices of all participants."""
    held = [(k, run.store.get(k, run.store.table.get(k))) for k in run.roster.participants]
    layout = run.world.resident.layout
    slices = {k: Memory.decode(blob, layout).personal_slice for k, blob in held if blob is not None}
    found = {k: slice for k, slice in slices.items() if slice is not None}
    weights = shares([run.server.clients[k].n for k in found], run.server.weighting)
    mean = average([floats for floats, _ in found.values()], weights)
    made = run.server.shared.copy()
    made.put(run.method.kept, mean.to(made.flat.device), next(iter(found.values()))[1].to(made.flat.device))
    return made


def oracle_numbers(run: "Run", groups: Mapping[str, list[int]]) -> dict[str, Numbers | None]:
    """That model on the global test set, on the local tests of participants, and on those of held-out clients."""
    world, batch = run.world, run.config.eval.batch
    data, classes = world.federation, world.federation.classes
    model = world.resident.frozen(averaged_personal(run), augmented=False).model
    tables = {k: confusion(model, data.clients[k].test, classes, batch).numpy() for k in range(len(data.clients))}
    whole = confusion(model, data.global_test, classes, batch).numpy() if len(data.global_test) else None
    world.resident.reset()
    return {
        "global": global_numbers(whole, groups, data.masks),
        "global_local": client_numbers({k: tables[k] for k in run.roster.participants}, groups, data.masks),
        "heldout": client_numbers({k: tables[k] for k in data.heldout}, groups, data.masks),
    }
