"""The client side of Flower's simulation: a module of its own, so that actors import it and keep what it caches."""

import os
from functools import cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from benchmarks.nets import build, formatted
from benchmarks.task import Task

TASK, FORMAT = "BENCH_TASK", "BENCH_CHANNELS_LAST"  # actors inherit the environment of the process that starts Ray


@cache
def task() -> Task:
    """The work, read once per process."""
    return Task.load(os.environ[TASK])


def channels_last() -> bool:
    """The memory format of this run."""
    return os.environ[FORMAT] == "1"


@cache
def net() -> torch.nn.Module:
    """The one model of a process."""
    torch.set_num_threads(1)
    return build(task().model, task().shape, task().classes, channels_last())


@cache
def clients() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Everybody's data, read once per process."""
    return [(formatted(torch.from_numpy(x), channels_last()), torch.from_numpy(y)) for x, y in task().clients()]


app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """A client's epochs of plain SGD."""
    model, (x, y) = net(), clients()[int(context.node_config["partition-id"])]
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=task().lr)
    for _ in range(task().epochs):
        for inputs, labels in zip(x.split(task().batch), y.split(task().batch), strict=True):
            optimiser.zero_grad(set_to_none=True)
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            optimiser.step()
    content = RecordDict()
    content["arrays"], content["metrics"] = ArrayRecord(model.state_dict()), MetricRecord({"num-examples": len(y)})
    return Message(content=content, reply_to=message)
