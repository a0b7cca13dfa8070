"""Rows of a pool."""

import pytest
import torch

from polyfed.data.samples import Pool, Samples, onto, scaled


def test_image_rows_are_gathered_and_prepared_in_channels_last() -> None:
    x = torch.randint(0, 256, (20, 5, 6, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    mean, std = torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1), torch.tensor([4.0, 5.0, 6.0]).view(3, 1, 1)
    pool = Pool(x, torch.arange(20), mean, std)
    rows = torch.tensor([3, 17, 4])
    assert torch.equal(pool.rows(rows), x[rows])
    made, y = Samples(pool, rows).take(torch.tensor([2, 0]))
    assert torch.equal(made, (x[[4, 3]].float() - mean) / std)
    assert made.is_contiguous(memory_format=torch.channels_last)
    assert y.tolist() == [4, 3]


def test_rows_that_are_no_images_are_gathered_too() -> None:
    for shape in ((20, 9, 16), (20, 7), (20, 2, 3, 4)):
        x = torch.randn(shape)
        rows = torch.tensor([5, 5, 0])
        assert torch.equal(Pool(x, torch.arange(20)).rows(rows), x[rows])


def test_what_is_given_to_be_scaled_stays_as_it_is() -> None:
    x = torch.randn(4, 3)
    before = x.clone()
    assert torch.equal(scaled(x, torch.ones(3), torch.full((3,), 2.0)), (before - 1) / 2)
    assert torch.equal(x, before)


def test_some_of_a_view_are_rows_of_the_same_pool() -> None:
    pool = Pool(torch.arange(10.0)[:, None], torch.arange(10) % 3)
    view = Samples(pool, torch.tensor([9, 4, 7, 1]))  # labels 0, 1, 1, 1
    ones = view.only(view.y == 1)
    assert ones.rows.tolist() == [4, 7, 1]
    assert ones.only(torch.tensor([False, True, True])).rows.tolist() == [7, 1]


class Copied:
    """Stands for a tensor and notes how it was moved."""

    def __init__(self, device: str, said: list[str]):
        self.device, self.said = torch.device(device), said

    def pin_memory(self) -> "Copied":
        self.said.append("pinned")
        return self

    def to(self, device: torch.device, non_blocking: bool = False) -> "Copied":
        self.said.append(f"to {device}{', not waiting' if non_blocking else ''}")
        return self


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("cpu", "cuda:1", ["pinned", "to cuda:1, not waiting"]),
        ("cuda:0", "cuda:1", ["to cuda:1"]),
        ("cpu", "mps", ["to mps"]),
    ],
)
def test_a_gpu_fetches_from_pinned_memory(before: str, after: str, expected: list[str]) -> None:
    said: list[str] = []
    onto(Copied(before, said), torch.device(after))  # type: ignore[arg-type]
    assert said == expected


def test_images_stay_channels_last_on_another_device() -> None:
    images = torch.zeros(2, 3, 4, 5, dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    moved = Pool(images, torch.zeros(2, dtype=torch.int64)).to(torch.device("meta"))
    assert moved.y.device.type == "meta"
    assert moved.x.is_contiguous(memory_format=torch.channels_last)
