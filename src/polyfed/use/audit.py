"""The leakage audit of a run: a client's round on a few samples, repeated, and what its upload gives away."""

import io
import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyfed import rng
from polyfed.config import Config
from polyfed.engine.run_folder import RunFolder
from polyfed.engine.work import World
from polyfed.errors import UsageError
from polyfed.files import write_file
from polyfed.message import Message
from polyfed.methods.base import Client
from polyfed.params import weights
from polyfed.threats.audit import Search, Seen, decibels, hits, images_of, labels_of, psnr
from polyfed.use.replay import restored

SITES = "deploy.json"  # which the run of a federation of real sites has
ENLARGED = 128  # pixels, at least, of the side of a picture


@dataclass
class Leak:
    """What one upload gave away."""

    psnr: list[float]  # of each original
    cosine: float
    labels: list[int] | None  # None: the head is personal
    hits: int
    pictures: Tensor  # in [0, 1]


def audit(
    config: Config, folder: RunFolder, client: int, images: int, search: Search, fresh: bool = False
) -> dict[str, Any]:
    """Repeat a client's round on some of its images as one step, and as usual; write `audit/` and give its numbers."""
    if (folder.path / SITES).exists():
        raise UsageError("an audit repeats a client's round, and the data of real sites are not here")
    run = restored(config, folder, client, fresh)
    world, method = run.world, run.method
    if not world.federation.preparation.images:
        raise UsageError("an audit looks for pictures, and the samples of this run are none")
    if world.federation.masks:
        raise UsageError("an audit looks for pictures by their labels, and the labels of this run are masks")
    down = run.jobs("train", run.progress.round + 1, [client])[0]
    blob = run.store.get(client, down.version)
    held = world.client(down, blob)
    if not 1 <= images <= held.n:
        raise UsageError(f"client {client} has {held.n} samples: ask for 1 to {held.n} images")
    chosen = held.data.only(torch.arange(held.n, device=held.data.rows.device) < images)
    originals, labels = world_pixels(world, chosen.take(torch.arange(images))[0]), chosen.y.tolist()
    everything = world_pixels(world, held.data.take(torch.arange(held.n))[0])
    if "w" not in world.setting.updates():
        note = f"method '{method.name}' sends no model: there is nothing to read"
        return _told(folder, client, method.name, {"note": note}, {})
    once, often = _upload(one_step(world, images), down, blob, images), _upload(world, down, blob, None)
    one = _leak(world, once, down.down, images, labels, originals, search)
    usual = _leak(world, often, down.down, images, held.data.y.tolist(), everything, search)
    grey = [decibels(float((each - 0.5).square().mean())) for each in originals]
    numbers = {
        "round": down.round,
        "personal": str(method.kept),
        "images": images,
        "labels": labels,
        "grey_psnr": [round(each, 2) for each in grey],
        "one_step": _numbers(one),
        "usual": _numbers(usual),
        "privacy": config.privacy.dump(),
    }
    pictures = {"originals": originals, "one-step": one.pictures, "usual": usual.pictures}
    return _told(folder, client, method.name, numbers, pictures)


def _told(
    folder: RunFolder, client: int, method: str, numbers: dict[str, Any], pictures: dict[str, Tensor]
) -> dict[str, Any]:
    """Write numbers and pictures of one client."""
    place = folder.place / "audit"
    place.mkdir()
    told = {"client": client, "method": method, **numbers}
    for name, rows in pictures.items():
        write_file(place / f"client-{client}-{name}.png", _png(rows))
    write_file(place / f"client-{client}.json", json.dumps(told, indent=1).encode())
    return told


def _numbers(leak: Leak) -> dict[str, Any]:
    labels = "hidden: the head is personal" if leak.labels is None else leak.labels
    found = {"labels": labels, "label_hits": leak.hits, "cosine": round(leak.cosine, 4)}
    return {**found, "psnr": [round(each, 2) for each in leak.psnr]}


def one_step(world: World, images: int) -> World:
    """The same world, in which a round is one step on one batch of so many samples."""
    train = world.task.train.model_copy(update={"epochs": 1.0, "batch": images, "min_steps": 0})
    twin = World(
        world.config.model_copy(update={"train": train, "method": world.method.model_copy()}), world.federation
    )
    twin.resident.initial = world.resident.initial
    twin.setting = world.setting  # the noise is that of the run
    twin.augment = None
    return twin


def _upload(world: World, job: Any, blob: bytes | None, images: int | None) -> Message:
    """What the client sends: trained on its first samples, or on all, under the run's privacy."""
    with rng.seeded(world.config.seed, "work", job.round, job.client):
        client: Client = world.client(job, blob)
        if images is not None:
            keep = torch.arange(client.n, device=client.data.rows.device) < images
            client.data = client.data.only(keep)
            client.counts = torch.bincount(client.data.y, minlength=len(client.counts))
            if client.private is not None:
                client.private = replace(client.private, most=None)
        up = world.method.train(client)
        world.privacy.leave(world.setting, client, up, job.down)
    return up


def _leak(
    world: World, up: Message, down: Message, images: int, labels: list[int], originals: Tensor, search: Search
) -> Leak:
    seen = _seen(world, up, down)
    found = labels_of(seen, images)
    shape = (images, *world.task.shape)
    x, cosine = images_of(seen, found, shape, _bounds(world), search)
    pictures = world_pixels(world, x)
    return Leak(psnr(pictures, originals), cosine, found, 0 if found is None else hits(found, labels), pictures)


def _seen(world: World, up: Message, down: Message) -> Seen:
    """The server's view: what it sent, the personal part at its start, and how far the shared part moved."""
    part = world.wire.up["w"].part
    assert part is not None
    sent, came = world.resident.initial.copy(), world.resident.initial.copy()
    sent.put(part, world.setting.start("w", up, down))
    came.put(part, up["w"])
    moved = sent.flat - came.flat  # the gradient, up to the learning rate, which an angle does not see
    shared = [entry for entry in world.resident.layout.entries if (part & weights).test(entry)]
    model = world.resident.frozen(sent, augmented=False).model
    return Seen(model, {entry.name: entry.view(moved).contiguous() for entry in shared})


def _bounds(world: World) -> tuple[Tensor, Tensor]:
    """The smallest and the largest value of a pixel, as the model sees them."""
    ends = torch.tensor([0, 255], dtype=torch.uint8)[:, None, None, None].expand(2, *world.task.shape)
    low, high = world.federation.clients[0].train.pool.prepare(ends)
    return low, high


def world_pixels(world: World, x: Tensor) -> Tensor:
    """Prepared images as pixels in [0, 1]."""
    low, high = _bounds(world)
    return ((x.detach().cpu() - low) / (high - low)).clamp(0, 1).contiguous()


def _png(rows: Tensor) -> bytes:
    """Images side by side, as a PNG that is large enough to be looked at."""
    from PIL import Image

    wide = torch.cat(list(rows), dim=2).mul(255).round().to(torch.uint8)  # [C, H, N * W]
    pixels = np.moveaxis(wide.numpy(), 0, 2)
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels[..., :3])
    factor = max(1, ENLARGED // picture.height)
    content = io.BytesIO()
    picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST).save(content, "PNG")
    return content.getvalue()
