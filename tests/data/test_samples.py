"""Rows of a pool."""

import torch

from polyfed.data.samples import Pool, Samples


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
