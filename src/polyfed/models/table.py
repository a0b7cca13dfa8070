"""A network for tables: categories become learnt vectors, numbers go beside them."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from polyfed.errors import UsageError
from polyfed.models.base import Model, Net, model
from polyfed.models.blocks import chain, relus
from polyfed.models.zoo import Zoo
from polyfed.registry import param


class Categories(nn.Module):
    """The first columns are categories, a vector each; the others are numbers and stay as they are."""

    def __init__(self, sizes: tuple[int, ...], wide: int):
        super().__init__()
        self.columns = nn.ModuleList(nn.Embedding(size + 1, wide) for size in sizes)  # 0: none of those declared

    def forward(self, x: Tensor) -> Tensor:
        cut = len(self.columns)
        found = [column(x[:, at].long()) for at, column in enumerate(self.columns)]
        return torch.cat([*found, x[:, cut:]], 1)


@model("table-mlp", paper="Guo and Berkhahn 2016")
class TableMLP(Zoo):
    """Vectors of 8 for each category beside the numbers of a row, then two hidden layers of 128."""

    axes = None
    eats: ClassVar[str] = "categories"
    categories: tuple[int, ...] | None = param(
        None, "how many categories each of the first columns has; by default those that data.categories declares"
    )

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of categories of each column that has any."""
        return self.categories or ()

    def suited(self, data: Any) -> Model:
        """Take the categories that the source declares, where the config says nothing."""
        declared, own = getattr(data, "sizes", None), super().suited(data)
        return (
            own if self.categories is not None or declared is None else own.model_copy(update={"categories": declared})
        )

    def net(self, shape: tuple[int, ...], classes: int) -> Net:
        if len(shape) != 1 or shape[0] < len(self.sizes) or min(self.sizes, default=1) < 1:
            raise UsageError(
                f"model '{self.name}' needs rows whose first columns have {list(self.sizes)} categories, the data have "
                f"shape {tuple(shape)}: set data.categories or model.categories"
            )
        wide, hidden = self.wide(8), self.wide(128)
        into = wide * len(self.sizes) + shape[0] - len(self.sizes)
        trunk = [("categories", Categories(self.sizes, wide)), ("fc1", nn.Linear(into, hidden)), ("relu1", nn.ReLU())]
        last = chain([("fc2", nn.Linear(hidden, hidden)), ("relu2", nn.ReLU())])
        net = Net(chain(trunk), last, nn.Linear(hidden, classes, bias=self.bias))
        net.listens = relus(net)
        return net
