"""FedAvg in pfl's own simulation, in pfl's environment; takes turns.

Its best settings on a CPU: torch.distributed over as many processes as there are cores where that is faster, users
balanced over them by size, data in memory as tensors, and no evaluation. (`use_torch_compile` changes nothing: pfl
calls the module's `loss`, which torch.compile leaves alone.)
"""

import argparse
import itertools
import os
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor

from benchmarks.nets import build, formatted
from benchmarks.task import Task
from benchmarks.turns import Rounds


class Classifier(torch.nn.Module):
    """A network as pfl wants it: with a loss, and with metrics that are asked for once, in the warm-up round."""

    def __init__(self, net: torch.nn.Module):
        super().__init__()
        self.net = net

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """What is minimised."""
        return torch.nn.functional.cross_entropy(self.net(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """Nothing is measured."""
        return {}


class Clock(TrainingProcessCallback):
    """Waits after every turn; only the first of several processes does, the others wait for it."""

    def __init__(self, task: Task) -> None:
        self.rounds, self.first = Rounds(task.per_turn, task.samples), os.environ.get("RANK", "0") == "0"

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
        """A round is over; rounds are counted from 0."""
        return self.first and not self.rounds.over(central_iteration + 1), Metrics()


def federated(task: Task, channels_last: bool) -> FederatedDataset:
    """The users and, round by round, the ones polyfed selects."""
    users = [
        PyTorchTensorDataset((formatted(torch.from_numpy(x), channels_last), torch.from_numpy(y)), user_id=str(k))
        for k, (x, y) in enumerate(task.clients())
    ]
    drawn = itertools.cycle(itertools.chain.from_iterable(task.selected))
    return FederatedDataset(users.__getitem__, drawn.__next__, dict(enumerate(map(len, users))))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("task")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--whole", action="store_true", help="all rounds at once, no turns")
    options = parser.parse_args()
    task = Task.load(options.task)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    net = Classifier(build(task.model, task.shape, task.classes, options.channels_last))
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    data, rounds = federated(task, options.channels_last), len(task.selected)
    FederatedAveraging().run(
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=model,
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,  # the first round evaluates all the same: it is the warm-up
            train_cohort_size=len(task.selected[0]),
            val_cohort_size=None,
        ),
        model_train_params=NNTrainHyperParams(
            local_batch_size=task.batch, local_num_epochs=task.epochs, local_learning_rate=task.lr
        ),
        callbacks=[] if options.whole else [Clock(task)],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main()
