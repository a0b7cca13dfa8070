"""ECL: expert collaborative learning for personalised long-tailed federated learning.

Readings (docs/changed-from-papers.md): the groups are of the classes present on the client; experts have fresh
heads (text) or inherit the global one (Algorithm 1, `expert_head_init="global"`); eq. 5 as printed; frozen BN, and BN
of the trained stage, in eval mode.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from polyfed.config import Train
from polyfed.methods.base import Client, Method, OnTop, method
from polyfed.methods.fedavg import FedAvg
from polyfed.params import Layout, Slice, head, last, named, nothing
from polyfed.parts.experts import Experts, frequency_groups
from polyfed.parts.fit import balanced, shuffled
from polyfed.parts.losses import balanced_cross_entropy, cross_entropy
from polyfed.registry import param


@method(
    "ecl",
    written="ECL",
    paper="Lv et al. 2024",
    title="Personalized Federated Learning on Heterogeneous and Long-Tailed Data via Expert Collaborative Learning",
)
class ECL(OnTop):
    """After any method, every client makes experts for its frequent and its rare classes."""

    late = True
    no_masks = "its experts answer for whole images"
    cost = "its base's; at the end epochs of a head on features, and of each expert"
    edges = {"one class": "one expert, trained like that of the tail; every answer is that class unless absent=global"}
    newcomer = "the base's model, from which it makes its experts at the end like everybody"
    keeps = {
        "branch": "after finish, the head of the client's global branch",
        "expert_*": "after finish, last stage and head of each expert",
    }
    base: Method = param(FedAvg(), "phase one: any method")
    experts: int = param(2, "number of experts M", ge=1)
    lam: float = param(0.5, "share of the experts in the answer", ge=0, le=1)
    scale: Literal["ecl", "none", "per_class", "inverse"] = param("ecl", "how experts are scaled to the global head")
    expert_head_init: Literal["fresh", "global"] = param("fresh", "where an expert's head starts")
    expert_trainable: Literal["last_stage", "last_block"] = param(
        "last_stage", "what of the body a head-group expert trains"
    )
    tail_balanced: bool = param(True, "whether the tail expert draws its classes equally often")
    phase2_epochs: float = param(10.0, "epochs of phase two", ge=0)
    phase2_lr: float = param(0.01, "learning rate of phase two", gt=0)
    phase2_bn: Literal["eval", "train"] = param("eval", "statistics of BN in the trained stage")
    absent: Literal["mask", "global"] = param(
        "mask", "classes the client does not hold: never answered, or by the global head"
    )

    def finish(self, client: Client) -> None:
        """Phase two, on every client."""
        self.begin_finish(client)
        start = client.live.copy()
        client.fit(  # global branch: only the head, balanced softmax, eq. 3
            balanced_cross_entropy(client.counts.to(client.live.flat)),
            on=client.features("head"),
            train=head,
            **self.rule(client),
        )
        client.memory.branch, _ = client.live.get(head)
        groups = frequency_groups(client.counts, self.experts)
        for m, classes in enumerate(groups):
            client.load(start)
            self.expert(client, m, classes, tail=m == len(groups) - 1)
        client.load(start)  # what the base keeps on the client stays as it was

    def expert(self, client: Client, m: int, classes: list[int], tail: bool) -> None:
        """v^m: a head of its own for its classes; the tail's on the frozen body, the others' with the last stage."""
        if self.expert_head_init == "fresh":
            client.fresh(head, m)
        rows = client.features("head" if tail else "last")
        rows = rows.only(torch.isin(rows.y, torch.tensor(classes, device=rows.y.device)))
        client.fit(  # eq. 4
            cross_entropy,
            on=rows,
            train=head if tail else head | self.stage(client),
            batches=balanced if tail and self.tail_balanced else shuffled,
            bn=self.phase2_bn,
            **self.rule(client),
        )
        client.memory[f"expert_{m}"], _ = client.live.get(head | last)

    def predictor(self, client: Client) -> nn.Module:
        """The scaled combination, eqs. 5-6; the global model for a client that is not finished yet."""
        if "branch" not in client.memory:
            return client.model
        groups = frequency_groups(client.counts, self.experts)
        branch = client.live.copy()
        branch.put(head, client.memory.branch)
        experts = []
        for m in range(len(groups)):
            expert = client.live.copy()
            expert.put(head | last, client.memory[f"expert_{m}"])
            experts.append(expert)
        factors = torch.ones(client.task.classes, device=client.live.flat.device)
        models = [client.frozen(p).model for p in (branch, *experts)]
        heads = [model.get_parameter("head.weight") for model in models]
        for weight, classes in zip(heads[1:], groups, strict=True):
            factors[classes] = self.factor(weight, heads[0])[classes]
        return Experts(models[0], models[1:], groups, factors, self.lam, self.absent == "mask")

    def factor(self, expert: Tensor, branch: Tensor) -> Tensor:
        """s_m = |U_m|^2 / |U_0|^2 (eq. 5), for every class; 1 where U_0 is zero."""
        if self.scale == "per_class":
            ratio = expert.square().sum(1) / branch.square().sum(1)
        else:
            ratio = (expert.square().sum() / branch.square().sum()).expand(len(expert))
        if self.scale == "none":
            return torch.ones_like(ratio)
        ratio = torch.nan_to_num(ratio, nan=1.0, posinf=1.0)
        return torch.nan_to_num(1 / ratio, posinf=1.0) if self.scale == "inverse" else ratio

    def stage(self, client: Client) -> Slice:
        """The last stage of the body, or only its last block."""
        if self.expert_trainable == "last_stage":
            return last
        return last_block(client.live.layout)

    def rule(self, client: Client) -> dict[str, object]:
        """How phase two descends."""
        rule: Train = client.task.train
        return {"epochs": self.phase2_epochs, "lr": self.phase2_lr, "rule": rule}


def last_block(layout: Layout) -> Slice:
    """The last residual block of `last`; without any, its last layer that has a matrix or kernel, and its norm."""
    weights = [e for e in layout.floats if e.kind == "weight" and last.test(e)]
    kernels = [e.name.split(".") for e in weights if len(e.shape) > 1]
    if not kernels:
        return nothing
    words = kernels[-1]
    depth = next((i for i, word in enumerate(words) if word.isdigit()), len(words) - 2)
    block = ".".join([*words[: depth + 1], ""])
    first = next(i for i, e in enumerate(weights) if e.name.startswith(block))
    return named(*(e.name for e in weights[first:]))
