"""FedRS (Li and Zhan 2021; MAP eqs. 8-9): restricted softmax in its three forms."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from riding import HOLDS, Ride

import by_hand
from polyfed.methods.fedrs import FedRS
from polyfed.parts.resident import Batch

Riding = Callable[..., Ride]
COUNTS = [6, 0, 1, 3]
LABELS = [c for c, n in enumerate(COUNTS) for _ in range(n)]


def with_counts(**train: Any):
    home = by_hand.resident(classes=4, bias=False)
    return by_hand.client(home, by_hand.some(labels=LABELS), classes=4, train=train)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, [1.0, 0.9, 1.0, 1.0]),
        ({"alpha": 0.25}, [1.0, 0.25, 1.0, 1.0]),
        ({"alpha": 0.5, "min_class_count": 2}, [1.0, 0.5, 0.5, 1.0]),  # the FEMNIST rule
        ({"alpha": 1.0}, [1.0] * 4),
        ({"alpha": 0.5, "rs_mode": "proportional"}, [1.0, 0.5, 0.5 + 0.5 / 6, 0.75]),
        ({"rs_mode": "fraction"}, [0.6, 0.0, 0.1, 0.3]),
    ],
    ids=str,
)
def test_the_factors_by_hand(keys: dict[str, Any], expected: list[float]) -> None:
    """alpha_c = I{c in O} + alpha I{c in M}; or n_c / max n (1 - alpha) + alpha; or n_c / sum n (below MAP eq. 8)."""
    assert FedRS(**keys).factors(with_counts()).tolist() == pytest.approx(expected)


def test_where_observed_classes_are_balanced_proportional_is_the_indicator() -> None:
    client = by_hand.client(by_hand.resident(), by_hand.some(labels=[0, 0, 2, 2]))
    assert torch.equal(FedRS(rs_mode="proportional", alpha=0.3).factors(client), FedRS(alpha=0.3).factors(client))


def test_the_loss_is_cross_entropy_on_restricted_logits() -> None:
    """MAP eq. 8."""
    client = with_counts()
    x, y = client.data.take(torch.arange(client.n))
    batch = Batch(client.model, x, y, torch.arange(client.n), client.data)
    logits = client.model(x).detach()
    logits[:, 1] *= 0.2
    torch.testing.assert_close(FedRS(alpha=0.2).loss(client, batch).detach(), F.cross_entropy(logits, y))


def missing_row(params, row: int) -> torch.Tensor:
    flat = params.flat[params.layout.n_weights - 4 * by_hand.WIDTH : params.layout.n_weights]
    return flat.view(4, by_hand.WIDTH)[row]


@pytest.mark.parametrize(("decay", "moves"), [(0.0, False), (0.1, True)])
def test_alpha_0_fixes_the_rows_of_missing_classes(decay: float, moves: bool) -> None:
    """Bit-identical after steps without weight decay, while observed rows move (MAP eq. 9)."""
    client = with_counts(weight_decay=decay, momentum=0.9)
    first = client.resident.initial
    FedRS(alpha=0.0).train(client)
    assert torch.equal(missing_row(client.live, 1), missing_row(first, 1)) == (not moves)
    for observed in (0, 2, 3):
        assert not torch.equal(missing_row(client.live, observed), missing_row(first, observed))


def test_a_bias_of_a_missing_class_is_fixed_with_its_row() -> None:
    """The whole logit is multiplied."""
    client = by_hand.client(by_hand.resident(), by_hand.some(labels=[0, 1, 0, 1]))
    FedRS(alpha=0.0).train(client)
    assert client.model.head.bias[2] == client.resident.initial.weights[-1]
    assert client.model.head.bias[0] != client.resident.initial.weights[-3]


def test_a_smaller_alpha_pushes_missing_rows_less() -> None:
    moved = []
    for alpha in (0.0, 0.1, 0.5, 1.0):
        client = with_counts()
        FedRS(alpha=alpha).train(client)
        moved.append(float((missing_row(client.live, 1) - missing_row(client.resident.initial, 1)).norm()))
    assert moved == sorted(moved)
    assert moved[0] == 0 < moved[1] < moved[3]


@pytest.mark.parametrize(
    ("train", "steps"), [({}, 3), ({"epochs": 3}, 9), ({"min_steps": 5}, 5), ({"epochs": 3, "min_steps": 5}, 9)]
)
def test_all_steps_are_restricted_and_as_many_as_the_run_says(train: dict[str, float], steps: int) -> None:
    client = with_counts(batch=4, **train)  # 3 batches
    FedRS().train(client)
    assert client.steps == steps


def test_every_step_is_clipped() -> None:
    """Eight steps at rate 1 without momentum: none moves the model farther than train.clip."""
    moved = {}
    for clip in (0.01, 1e3):
        client = with_counts(clip=clip, lr=1.0, batch=16, epochs=8)
        FedRS().train(client)
        assert client.steps == 8
        moved[clip] = float((client.live.weights - client.resident.initial.weights).norm())
    assert 0.01 < moved[0.01] <= 8 * 0.01 * 1.001
    assert moved[1e3] > 0.5, "without clipping it goes farther"


def test_the_upload_is_the_personal_model_and_testing_is_plain(ride: Riding) -> None:
    run = ride({"name": "fedrs", "alpha": 0.0}, data="skewed", rounds=2)
    for seen in run.of("train"):
        assert torch.equal(seen.up.w, seen.live)
    answers = run.result.global_model().logits(torch.zeros(1, 8))
    assert torch.equal(answers, run.result.client(3).logits(torch.zeros(1, 8)))  # nobody's logits are restricted


def test_on_a_real_federation_missing_rows_come_back_as_they_were_sent(ride: Riding) -> None:
    run = ride({"name": "fedrs", "alpha": 0.0}, data="skewed", rounds=2)
    rows = run.layout.n_weights - 5 * 10
    for seen in run.of("train"):
        down, up = (m.w[rows:].view(5, 10) for m in (seen.down, seen.up))
        for c in range(5):
            assert torch.equal(down[c], up[c]) == (c not in HOLDS[seen.client])


def test_all_uploads_count_alike(ride: Riding) -> None:
    """MAP: uniform weights, whatever the sizes."""
    run = ride({"name": "fedrs", "alpha": 0.0}, data="skewed", rounds=2)
    mean = torch.stack([run.train(2, k).up.w for k in range(4)]).mean(0)
    torch.testing.assert_close(run.params.flat, mean, rtol=1e-5, atol=1e-6)
