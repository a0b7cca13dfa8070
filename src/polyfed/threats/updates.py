"""What an update is measured from: the model that a client was sent, of several the nearest."""

import torch
from torch import Tensor

from polyfed.message import Field, Message
from polyfed.params import Layout, weights


def start_of(field: Field, value: Tensor, sent: Message) -> Tensor:
    """What the client was sent in place of the value of a field that it sends; of several models, the nearest."""
    assert field.against is not None
    rows = sent[field.against].reshape(-1, value.numel()).to(value.device)
    if len(rows) == 1:
        return rows[0]
    return rows[int(torch.stack([torch.linalg.vector_norm(value.reshape(-1) - row) for row in rows]).argmin())]


def weights_in(field: Field, value: Tensor, layout: Layout) -> int:
    """How many of the numbers of a field are weights; they come first, and float buffers after them."""
    return value.numel() if field.part is None else layout.length(field.part & weights)
