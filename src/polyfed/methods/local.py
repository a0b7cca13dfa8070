"""Local: every client alone, the control that shows what federation is worth."""

from collections.abc import Sequence
from math import ceil

from polyfed.message import Message, Wire
from polyfed.methods.base import Client, Method, Server, Upload, method
from polyfed.params import everything


@method("local", written="Local", paper="control")
class Local(Method):
    """Every client trains alone, as many epochs as it would expect in federation; nothing is sent."""

    personal = everything
    everyone = True
    own_models = True
    cost = "as FedAvg over the whole run: every client in every round, for its share of the epochs"
    newcomer = "the initial model, trained at the end on its own data alone"

    def wire(self) -> Wire:
        return Wire()

    def send(self, server: Server, id: int) -> Message:
        return Message()

    def private_steps(self, n: int) -> int:
        return ceil(self.task.participation * self.task.train.epochs * self.per_epoch(n)) + 1

    def train(self, client: Client) -> Message:
        due = client.task.participation * client.task.train.epochs * client.per_epoch(client.data)
        steps = round(client.round * due) - round((client.round - 1) * due)  # by steps, so that fractions add up
        self.local(client, steps=steps)
        return Message()

    def merge(self, server: Server, uploads: Sequence[Upload]) -> None:
        """There is nothing to merge."""
