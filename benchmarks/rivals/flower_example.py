"""FedAvg in Flower's simulation the way Flower's own PyTorch examples are written: nothing is tuned.

Every call builds its model and its loaders anew, batches come from a DataLoader, and the backend keeps its defaults.
The data are read once per process, and half the clients evaluate after every round.
"""

import argparse
import os
from functools import cache

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.nets import build
from benchmarks.rivals.flower_client import TASK, task

Metrics = dict[str, int | float | list[int] | list[float]]
client, server = ClientApp(), ServerApp()


@cache
def partitions() -> list[tuple[TensorDataset, TensorDataset]]:
    """Everybody's training and test samples."""
    parts = zip(task().clients(), task().tests(), strict=True)
    return [tuple(TensorDataset(*map(torch.from_numpy, part)) for part in both) for both in parts]  # type: ignore[misc]


def received(message: Message) -> torch.nn.Module:
    """A new model with the weights that came."""
    model = build(task().model, task().shape, task().classes, False)
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    return model


@client.train()
def train(message: Message, context: Context) -> Message:
    """Some epochs of SGD."""
    model, (rows, _) = received(message), partitions()[int(context.node_config["partition-id"])]
    lr = float(str(message.content.config_records["config"]["lr"]))
    criterion, optimiser, loss_sum = torch.nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=lr), 0.0
    loader = DataLoader(rows, batch_size=task().batch, shuffle=True)
    model.train()
    for _ in range(task().epochs):
        for images, labels in loader:
            optimiser.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimiser.step()
            loss_sum += loss.item()
    metrics: Metrics = {"train_loss": loss_sum / (task().epochs * len(loader)), "num-examples": len(rows)}
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=message)


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """The accuracy on a client's own test samples."""
    model, (_, rows) = received(message), partitions()[int(context.node_config["partition-id"])]
    correct = 0
    with torch.no_grad():
        for images, labels in DataLoader(rows, batch_size=task().batch):
            correct += int((model(images).argmax(1) == labels).sum())
    metrics: Metrics = {"eval_acc": correct / max(len(rows), 1), "num-examples": len(rows)}
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)


@server.main()
def serve(grid: Grid, context: Context) -> None:
    """FedAvg."""
    model = build(task().model, task().shape, task().classes, False)
    strategy = FedAvg(fraction_train=task().participation, fraction_evaluate=0.5)
    lr, rounds = ConfigRecord({"lr": task().lr}), len(task().selected)
    strategy.start(grid, ArrayRecord(model.state_dict()), train_config=lr, num_rounds=rounds)


def main() -> None:
    """All rounds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task")
    os.environ[TASK] = parser.parse_args().task
    run_simulation(server, client, len(task().sizes()))


if __name__ == "__main__":
    from benchmarks.rivals import flower_example  # by its name, so that actors import the apps instead of copying them

    flower_example.main()
