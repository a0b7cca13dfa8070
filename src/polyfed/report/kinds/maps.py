"""Where a network looks: class activation maps, weighted by gradients (Selvaraju et al. 2017), as MuPFL's Figure 4."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyfed.errors import UsageError
from polyfed.models.base import Net, spread
from polyfed.report.charts import Axis, Chart, Panel, Tiles


def activation_maps(net: Net, x: Tensor, y: Tensor) -> Tensor:
    """For prepared images [N, C, H, W], how much each pixel speaks for the class of its image: [N, H, W] from 0 to 1.

    The channels of the last map of pixels in `last` (or in `trunk`, where `last` has none) are weighted by the mean
    gradient of the class's logit, and what speaks against the class is left out. The network is left as it was.
    """
    seen: dict[str, Tensor] = {}

    def look(_: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
        for found in (*given, out):
            if isinstance(found, Tensor) and found.dim() == 4 and found.requires_grad:
                seen["map"] = found

    was = net.training
    hooks = [part.register_forward_hook(look) for part in (*net.trunk.modules(), *net.last.modules())]
    try:
        with torch.enable_grad():
            logits = net.eval()(x.detach().requires_grad_(True))
            if "map" not in seen or logits.dim() != 2:
                raise UsageError("class activation maps need a network of whole images with convolutions in its body")
            (slope,) = torch.autograd.grad(logits.gather(1, y[:, None]).sum(), seen["map"])
    finally:
        net.train(was)
        for hook in hooks:
            hook.remove()
    weighted = F.relu((slope.mean((2, 3), keepdim=True) * seen["map"]).sum(1, keepdim=True)).detach()
    maps = spread(weighted, x.shape[2:])[:, 0]
    return maps / maps.amax((1, 2), keepdim=True).clamp(min=torch.finfo(maps.dtype).tiny)


def map_chart(nets: Mapping[str, Net], x: Tensor, y: Tensor, titles: Sequence[str]) -> Chart:
    """A panel of each image as it is (its mean over channels), then one of each network's map of it, in their order."""
    return chart_of({name: activation_maps(net, x, y) for name, net in nets.items()}, x.mean(1), titles)


def chart_of(maps: Mapping[str, Tensor], pictures: Tensor, titles: Sequence[str]) -> Chart:
    """A line of panels for each image [H, W]: the image, then its map under each name."""
    panels = []
    for i, title in enumerate(titles):
        panels.append(_panel(title, pictures[i].numpy(), "grey"))
        panels += [_panel(f"{title}: {name}", each[i].numpy(), "activation") for name, each in maps.items()]
    caption = (
        "Grad-CAM at the last map of pixels: 1 is the pixel that speaks most for the image's class, 0 says nothing."
    )
    return Chart("maps", "Where the networks look", caption, panels, across=1 + len(maps))


def _panel(title: str, values: np.ndarray, what: str) -> Panel:
    across, down = Axis("column", "column"), Axis("row", "row", names=[str(n) for n in range(len(values))])
    return Panel(title, across, down, [Tiles("", 0, values, what, picture=what == "grey")], square=True)
