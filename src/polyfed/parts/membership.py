"""Which client belongs to which cluster and is given its model, round after round."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from polyfed.message import State
from polyfed.params import Params
from polyfed.parts.dendrogram import MEASURES, Knowledge, Partition

UNDIVIDED = 5  # one cluster so many times in a row ends the search for more


class Clusters:
    """Which client is given which model, kept in the server's state.

    `placed` marks the clients that were there when the clusters were found.
    """

    def __init__(self, state: State):
        self.state = state

    @staticmethod
    def begin(state: State, params: Params, clients: int) -> None:
        """Begin with one cluster that holds all clients."""
        state.model_0, state.opened = params, 1
        state.assigned = torch.zeros(clients, dtype=torch.int64)
        state.placed = torch.ones(clients, dtype=torch.int64)
        # the groups that were found last: -1 for absent clients, and for all clients where there is one cluster
        state.partition = torch.full((clients,), -1)
        state.clustered = state.stable = state.undivided = 0  # undivided: how many times in a row one cluster was found

    def of(self, client: int) -> int:
        """The number of a client's cluster."""
        return int(self.state.assigned[client])

    def model(self, client: int) -> Params:
        """The model a client is given."""
        return self[self.of(client)]

    def __getitem__(self, number: int) -> Params:
        return self.state[f"model_{number}"]

    def __setitem__(self, number: int, params: Params) -> None:
        self.state[f"model_{number}"] = params

    def known(self) -> list[int]:
        """The clusters in which at least one client was placed."""
        return sorted({int(g) for g in self.state.assigned[self.state.placed == 1]})

    def place(self, client: int, number: int) -> None:
        """Put a client into a cluster."""
        self.state.assigned[client], self.state.placed[client] = number, 1

    def open(self, clients: Iterable[int], params: Params) -> None:
        """Open a new cluster for these clients, which starts with this model."""
        number = self.state.opened
        self[number], self.state.opened = params, number + 1
        for client in clients:
            self.place(client, number)

    def quarantine(self, client: int) -> None:
        """Leave a client alone with the model it had, until it can be placed."""
        self.open([client], self.model(client))
        self.state.placed[client] = 0

    def regroup(self, groups: Sequence[Sequence[int]]) -> None:
        """Regroup the clients; one that is in no group keeps its model until it can be placed.

        A group that is the only one to come from an old cluster continues it, and its absent members stay in it.
        """
        self.state.placed = torch.zeros_like(self.state.placed)
        came = [{self.of(client) for client in group} for group in groups]
        for group, before in zip(groups, came, strict=True):
            if len(before) == 1 and sum(bool(before & other) for other in came) == 1:
                for client in group:
                    self.place(client, *before)
            else:
                self.open(group, self.model(group[0]))

    def settle(self, clients: Sequence[int], responses: Tensor, found: Partition) -> None:
        """Adopt a partition of these clients, and keep their responses to compare later clients with them."""
        self.regroup([[clients[i] for i in members] for members in found.members()])
        state, now, one = self.state, torch.full_like(self.state.partition, -1), found.kappa == 1
        if not one:
            now[list(clients)] = torch.tensor(found.labels)
        state.undivided = state.undivided + 1 if one else 0
        state.stable = int(state.undivided >= UNDIVIDED or agree(now, state.partition))
        state.partition, state.threshold, state.clustered = now, found.threshold, 1
        state.responses = responses.new_ones(len(now), *responses.shape[1:])
        state.responses[list(clients)] = responses

    def nearest(self, responses: Tensor, knowledge: Knowledge = "responses") -> int | None:
        """The cluster from whose members these responses diverge least on average; None if it is too much."""
        here = self.state.placed == 1
        apart = MEASURES[knowledge][1](responses, self.state.responses[here])
        means = {n: float(apart[self.state.assigned[here] == n].mean()) for n in self.known()}
        near = [n for n in means if means[n] < self.state.threshold]
        return min(near, key=lambda n: means[n], default=None)

    def join(self, client: int, responses: Tensor, params: Params, knowledge: Knowledge = "responses") -> None:
        """Place a client that was absent: in the nearest cluster, or in one of its own that starts with its model."""
        number = self.nearest(responses, knowledge)
        if number is None:
            self.open([client], params)
        else:
            self.place(client, number)
        self.state.responses[client] = responses

    def forget(self) -> list[int]:
        """Drop the models that no client is given; return the numbers of the others."""
        used = self.state.assigned.unique().tolist()
        for name in [n for n in self.state if n.startswith("model_") and int(n[6:]) not in used]:
            del self.state[name]
        return used


def agree(one: Tensor, other: Tensor) -> bool:
    """Whether two partitions group the clients alike that both know (-1: unknown); one such client is no evidence."""
    both = (one >= 0) & (other >= 0)
    one, other = one[both], other[both]
    return len(one) > 1 and torch.equal(one[:, None] == one, other[:, None] == other)
