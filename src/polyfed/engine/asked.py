"""How many samples of the global test set a run asks about: a function of config and sizes, never of a clock."""

from typing import TYPE_CHECKING

import numpy as np

from polyfed.data.federation import Federation
from polyfed.data.samples import Samples
from polyfed.params import head
from polyfed.rng import generator

if TYPE_CHECKING:
    from polyfed.engine.rounds import Run

WHOLE = 1 / 4  # of the training's cost: what PA_cls on the whole global test set may cost under eval.classes=auto
SAMPLED = 1 / 40  # of the training's cost: what it may cost on a sample
BETWEEN = 1 / 40  # of the training's cost: what GA after all rounds may cost under eval.ga=auto
LEAST = 50  # samples of each class below which a sample says too little
FEWEST = 1000  # samples below which GA on a sample says too little
STEP = 3  # forward passes that a training step costs, backward and all


def asked_classes(run: "Run") -> int | None:
    """How many samples of each class PA_cls asks everybody about; 0: the whole global test set; None: it is not.

    By default it asks about the whole where that is cheap beside training, else about a sample, and says so.
    """
    asked, classes = run.config.eval.classes, run.world.federation.classes
    test = len(run.world.federation.global_test)
    if test == 0 or asked is False:
        return None
    training = STEP * _trained(run)
    if asked is True or _passes(run, test) <= WHOLE * training:
        return 0
    count = max(LEAST, int(SAMPLED * training / _passes(run, 1) / classes))
    sample = len(run.world.class_test(count))
    if sample == test:
        return 0
    run.say(
        f"PA_cls is measured on {sample} of the {test} samples of the global test set, at most {count} of each "
        "class: all of them would cost more than a quarter of the training; eval.classes=true asks about all"
    )
    return count


def asked_between(run: "Run") -> int:
    """On how many samples of the global test set GA is measured after every round but the last, which asks about all.

    By default on the whole where that is cheap beside training, where it is asked about for an attack anyway, and where
    a round is chosen by validation, whose numbers are a result; else on a sample.
    """
    test, asked = len(run.world.federation.global_test), run.config.eval.ga
    if asked != "auto":
        return test if asked == "all" else min(test, asked)
    if run.world.adversary is not None or run.config.split.val:
        return test
    evaluations = -(-run.config.rounds // run.config.eval.every)
    cheap = int(BETWEEN * STEP * _trained(run) / evaluations)
    return min(test, max(FEWEST, LEAST * run.world.federation.classes, cheap))


def test_sample(data: Federation, count: int, seed: int) -> Samples:
    """Random samples of the global test set, of each class the same share: GA on them estimates GA on the whole."""
    rows, draw = data.split.global_test, generator(seed, "test-sample")
    labels = data.dataset.labels[rows]
    share = np.ones(len(rows))  # of its class that is drawn before a sample
    for c in range(data.classes):
        of_class = draw.permutation(np.flatnonzero(labels == c))
        share[of_class] = np.arange(len(of_class)) / max(len(of_class), 1)
    return data.view(rows[np.sort(np.argsort(share, kind="stable")[:count])])


def _trained(run: "Run") -> float:
    """Samples that the rounds train on, as the config has it."""
    held = sum(run.server.clients[k].n for k in run.world.federation.participants)
    share = 1.0 if run.method.everyone else run.config.participation
    return run.config.rounds * share * run.config.train.epochs * held


def _passes(run: "Run", samples: int) -> float:
    """Forward passes that PA_cls on so many samples costs: a body that all clients share passes each only once."""
    clients = len(run.roster.participants)
    if not run.method.personalises:
        return samples
    if run.method.one_body:
        layout = run.world.resident.layout
        return samples * (1 + clients * layout.length(head) / layout.size)
    return samples * clients
