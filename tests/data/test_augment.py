"""Random crops and flips."""

import pytest
import torch

from polyfed.data.augment import augmenter
from polyfed.errors import UsageError


def drawn(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(n: int = 6, channels: int = 3, side: int = 16) -> torch.Tensor:
    return torch.rand(n, channels, side, side).add(1).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("kind", ["flip", "crop", "crop+flip"])
@pytest.mark.parametrize("channels", [1, 3])
def test_it_is_keyed_and_keeps_shape_type_and_layout(kind: str, channels: int) -> None:
    change = augmenter(kind)
    assert change is not None
    for x in (images(40, channels), images(40, channels).mul(100).byte()):
        before = x.clone()
        made, again, other = (change(x, drawn(seed)) for seed in (0, 0, 1))
        assert torch.equal(x, before)
        assert torch.equal(made, again)
        assert not torch.equal(made, other)
        assert made.shape == x.shape
        assert made.dtype == x.dtype
        assert made.is_contiguous(memory_format=torch.channels_last)


def test_a_flip_turns_some_images_round_and_leaves_the_others() -> None:
    x = images(50)
    change = augmenter("flip")
    assert change is not None
    made = change(x, drawn(0))
    turned = [torch.equal(a, b.flip(2)) for a, b in zip(made, x, strict=True)]
    same = [torch.equal(a, b) for a, b in zip(made, x, strict=True)]
    assert all(t != s for t, s in zip(turned, same, strict=True))
    assert 10 < sum(turned) < 40


@pytest.mark.parametrize(("side", "reach"), [(32, 4), (28, 3), (8, 1), (4, 1)])
def test_a_crop_is_a_shift_by_at_most_an_eighth(side: int, reach: int) -> None:
    x = images(200, 1, side)
    black = torch.tensor([-7.0]).view(1, 1, 1)
    change = augmenter("crop", black)
    assert change is not None
    made = change(x, drawn(0))
    padded = torch.nn.functional.pad(x, [reach] * 4, value=-7.0)
    shifts = set()
    for image, wide in zip(made, padded, strict=True):
        found = [
            (i, j)
            for i in range(2 * reach + 1)
            for j in range(2 * reach + 1)
            if torch.equal(image, wide[:, i : i + side, j : j + side])
        ]
        assert len(found) == 1
        shifts.update(found)
    assert {i for i, _ in shifts} == {j for _, j in shifts} == set(range(2 * reach + 1))
    assert len(shifts) > 2 * reach + 1, "up and across are drawn apart"


def test_none_is_none_and_only_images_are_changed() -> None:
    assert augmenter("none") is None
    change = augmenter("crop")
    assert change is not None
    with pytest.raises(UsageError, match=r"data.augment=crop is for images"):
        change(torch.zeros(2, 9, 128), drawn(0))
