"""Networks for arrays of tokens: whole numbers [N, length], where 0 is padding."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from polyfed.errors import UsageError
from polyfed.models.base import Model, Net, model
from polyfed.models.blocks import chain, relus
from polyfed.models.zoo import Zoo
from polyfed.registry import param

IDS = 4096  # kinds of tokens, where neither the model nor the data say how many


class OfTokens(Zoo):
    """A network whose inputs are token ids; what it takes is told from the data by their kind."""

    axes = None
    eats: ClassVar[str] = "tokens"
    ids: int | None = param(None, "kinds of tokens, padding (0) included; by default data.ids, or else 4096", ge=2)

    @property
    def kinds(self) -> int:
        """How many ids there are."""
        return IDS if self.ids is None else self.ids

    def suited(self, data: Any) -> Model:
        """Take as many ids as the source says it gives, where the config says nothing."""
        said = getattr(data, "kinds", None)
        own = super().suited(data)
        return own if self.ids is not None or said is None else own.model_copy(update={"ids": said})

    def build(self, shape: tuple[int, ...], classes: int) -> Net:
        if len(shape) != 1:
            raise UsageError(f"model '{self.name}' needs tokens [N, length], the data have shape {tuple(shape)}")
        return super().build(shape, classes)


class Bag(nn.Module):
    """The mean of the vectors of a text's tokens; a text of padding alone is zero."""

    def __init__(self, ids: int, wide: int):
        super().__init__()
        self.embedding = nn.Embedding(ids, wide, padding_idx=0)

    def forward(self, x: Tensor) -> Tensor:
        return _mean(self.embedding(x), (x != 0).float())


@model("text-bag", paper="Joulin et al. 2017")
class TextBag(OfTokens):
    """The mean of learnt vectors (64) of a text's tokens, then a hidden layer of 64; their order is not seen."""

    def net(self, shape: tuple[int, ...], classes: int) -> Net:
        wide = self.wide(64)
        last = chain([("fc1", nn.Linear(wide, wide)), ("relu1", nn.ReLU())])
        net = Net(chain([("bag", Bag(self.kinds, wide))]), last, nn.Linear(wide, classes, bias=self.bias))
        net.listens = relus(net)
        return net


class Placed(nn.Module):
    """Tokens as vectors with learnt positions; a last channel marks where a token is (1) and where padding is (0).

    The mark travels with the vectors, so that trunk and last can be called one by one.
    """

    def __init__(self, ids: int, length: int, wide: int):
        super().__init__()
        self.embedding = nn.Embedding(ids, wide, padding_idx=0)
        self.position = nn.Parameter(torch.empty(length, wide))
        nn.init.normal_(self.position, 0.0, 0.02)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.embedding(x) + self.position, (x != 0).float().unsqueeze(-1)], -1)


class Attention(nn.Module):
    """Every token looks at every other that is no padding; its four projections are linear layers."""

    def __init__(self, wide: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(wide, wide) for _ in range(4))

    def forward(self, h: Tensor, there: Tensor) -> Tensor:
        rows, length, wide = h.shape
        q, k, v = (
            layer(h).view(rows, length, self.heads, -1).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        told = q @ k.transpose(-2, -1) / (wide // self.heads) ** 0.5
        told = told + (there[:, None, None, :] - 1) * 1e9  # finite: a text of padding alone gets no NaN
        return self.out((told.softmax(-1) @ v).transpose(1, 2).reshape(rows, length, wide))


class Block(nn.Module):
    """Attention, then two linear layers, each added to what came in and each after a norm (pre-norm)."""

    def __init__(self, wide: int, heads: int):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(wide), Attention(wide, heads)
        self.norm2, self.fc1, self.relu, self.fc2 = (
            nn.LayerNorm(wide),
            nn.Linear(wide, 2 * wide),
            nn.ReLU(),
            nn.Linear(2 * wide, wide),
        )

    def forward(self, x: Tensor) -> Tensor:
        h, there = x[..., :-1], x[..., -1]
        h = h + self.attention(self.norm1(h), there)
        h = h + self.fc2(self.relu(self.fc1(self.norm2(h))))
        return torch.cat([h, there.unsqueeze(-1)], -1)


class MeanOverTokens(nn.Module):
    """The mean over tokens that are no padding, after a norm, as rows."""

    def __init__(self, wide: int):
        super().__init__()
        self.norm = nn.LayerNorm(wide)

    def forward(self, x: Tensor) -> Tensor:
        return _mean(self.norm(x[..., :-1]), x[..., -1])


@model("text-transformer", paper="Vaswani et al. 2017; Xiong et al. 2020 (pre-norm)")
class TextTransformer(OfTokens):
    """A small encoder: pre-norm blocks of width 64, learnt positions, the mean over tokens; BAVD cannot listen."""

    blocks: int = param(2, "blocks of attention", ge=1, le=24)
    heads: int = param(4, "heads of attention, which divide the width", ge=1)

    def net(self, shape: tuple[int, ...], classes: int) -> Net:
        wide = self.wide(64)
        if wide % self.heads:
            raise UsageError(
                f"model.heads={self.heads} does not divide the width {wide}: set model.heads or model.width"
            )
        blocks = [(f"block{i}", Block(wide, self.heads)) for i in range(1, self.blocks + 1)]
        trunk = chain([("place", Placed(self.kinds, shape[0], wide))], blocks[:-1])
        last = chain(blocks[-1:], [("mean", MeanOverTokens(wide))])
        return Net(trunk, last, nn.Linear(wide, classes, bias=self.bias))


def _mean(h: Tensor, there: Tensor) -> Tensor:
    return (h * there.unsqueeze(-1)).sum(1) / there.sum(1, keepdim=True).clamp(min=1)
