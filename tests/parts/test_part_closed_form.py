"""A head on rows, trained in closed form: the same steps as with autograd, and only where they are."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import by_hand
from polyfed.data.samples import Samples
from polyfed.params import Params, body, everything, head
from polyfed.parts import closed_form
from polyfed.parts.losses import LogitLoss, balanced_cross_entropy, cross_entropy
from polyfed.parts.resident import Resident

PLAIN: dict[str, Any] = {"lr": 0.3, "batch": 5}


def rows(n: int = 13) -> Samples:
    generator = torch.Generator().manual_seed(1)
    return Samples.of(torch.randn(n, by_hand.WIDTH, generator=generator), torch.arange(n) % 2, "head")


def fitted(
    home: Resident, loss: Any, train: dict[str, Any], steps: int = 7
) -> tuple[Params, list[float], dict[str, float]]:
    """Values, losses and tally after two fits, the second of which goes on."""
    client = by_hand.client(home, by_hand.some(6), train=train)
    made = loss(client)
    client.fit(made, on=rows(), steps=7, train=head)
    client.fit(made, on=rows(), steps=3, train=head, go_on=True)
    return home.params.copy(), [float(value) for value in client.tally.losses], client.tally.numbers()


def taught(client: Any) -> LogitLoss:
    """A teacher of other values, as FedCRC's stage three has one."""
    other = client.live.copy()
    other.flat.mul_(-0.7)
    return LogitLoss(teacher=client.frozen(other), weight=0.6)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rule", [{}, {"momentum": 0.9}, {"weight_decay": 0.1}, {"momentum": 0.5, "weight_decay": 0.1}])
@pytest.mark.parametrize(
    "loss",
    [lambda c: cross_entropy, lambda c: balanced_cross_entropy(torch.tensor([4, 2, 0])), taught],
    ids=["plain", "balanced", "taught"],
)
def test_it_takes_the_steps_that_autograd_takes(
    loss: Any, rule: dict[str, float], bias: bool, monkeypatch: Any
) -> None:
    asked = []
    descend = closed_form.descend
    monkeypatch.setattr(closed_form, "descend", lambda fit, steps: asked.append(steps) or descend(fit, steps))
    quick, quick_losses, quick_tally = fitted(by_hand.resident(bias=bias), loss, PLAIN | rule)
    assert asked == [7, 3], "the closed form was used"
    monkeypatch.setattr(closed_form, "applies", lambda fit: False)
    slow, slow_losses, slow_tally = fitted(by_hand.resident(bias=bias), loss, PLAIN | rule)
    assert asked == [7, 3]
    torch.testing.assert_close(quick.flat, slow.flat, rtol=1e-4, atol=1e-6)
    assert quick_losses == pytest.approx(slow_losses, rel=1e-4)
    assert quick_tally == pytest.approx(slow_tally, rel=1e-4)
    moved = (quick.flat - by_hand.resident(bias=bias).initial.flat).abs().sum()
    assert moved > 0.1, "there was something to compare"


def test_one_plain_step_by_hand() -> None:
    home = by_hand.resident()
    client, samples = by_hand.client(home, by_hand.some(6), train={"lr": 0.5, "batch": 4}), rows(4)
    w, b, x = home.model.head.weight.detach().clone(), home.model.head.bias.detach().clone(), samples.pool.x
    d = torch.softmax(x @ w.T + b, 1) - torch.nn.functional.one_hot(samples.y, by_hand.CLASSES)
    client.fit(cross_entropy, on=samples, steps=1, train=head)
    torch.testing.assert_close(home.model.head.weight.detach(), w - 0.5 * d.T @ x / 4)
    torch.testing.assert_close(home.model.head.bias.detach(), b - 0.5 * d.mean(0))


@pytest.mark.parametrize("size", [5, 13, 64])
@pytest.mark.parametrize("gathered", [1, 1 << 21])
def test_blocks_do_not_show(size: int, gathered: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches that do not fill a block, blocks that do not fill an epoch, and a batch larger than the data."""
    rule = {"lr": 0.3, "batch": size}
    expected, losses, tally = fitted(by_hand.resident(), lambda c: cross_entropy, rule)
    monkeypatch.setattr("polyfed.parts.fit.GATHER", gathered)
    found, found_losses, found_tally = fitted(by_hand.resident(), lambda c: cross_entropy, rule)
    assert torch.equal(found.flat, expected.flat)
    assert found_losses == pytest.approx(losses, rel=1e-6)
    assert found_tally == pytest.approx(tally, rel=1e-6)
    assert found_tally["steps"] == len(found_losses) == 10


def test_listeners_are_told_of_every_step() -> None:
    home, heard = by_hand.resident(), []
    home.listeners.append(SimpleNamespace(training=True, after_step=lambda loss: heard.append(float(loss))))
    client = by_hand.client(home, by_hand.some(6), train=PLAIN)
    client.fit(cross_entropy, on=rows(), steps=7, train=head)
    assert heard == [float(loss) for loss in client.tally.losses]
    assert len(heard) == 7


@pytest.mark.parametrize(
    ("fit", "train"),
    [
        ({"train": everything}, {}),
        ({"train": body, "on": None}, {}),
        ({"train": head, "on": None}, {}),
        ({"train": head, "correct": lambda grad: None}, {}),
        ({"train": head, "loss": lambda batch: cross_entropy(batch)}, {}),
        ({"train": head}, {"clip": 1.0}),
        ({"train": head}, {"momentum": 0.9, "nesterov": True}),
    ],
)
def test_it_keeps_out_of_what_it_does_not_cover(fit: dict[str, Any], train: dict[str, Any], monkeypatch: Any) -> None:
    monkeypatch.setattr(closed_form, "descend", lambda fit, steps: pytest.fail("not covered"))
    client = by_hand.client(by_hand.resident(), by_hand.some(6), train=PLAIN | train)
    options = {"loss": cross_entropy, "on": rows(), **fit}
    assert client.fit(steps=2, **options) == 2
