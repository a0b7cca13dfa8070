"""Masks as data: their sources, folders, long tail, owners, sizes and changes."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import masked
import polyfed
from polyfed.data.augment import augmenter
from polyfed.data.longtail import tail_sizes
from polyfed.data.sources import Dataset, sources
from polyfed.data.sources.arrays import Arrays
from polyfed.data.sources.masks import folders, resized_masks
from polyfed.data.sources.pictures import read_image
from polyfed.errors import DataError, UsageError

SHARED = Path(__file__).parents[3] / "shared" / "data"


def test_a_dataset_of_masks_is_checked() -> None:
    x, y = masked.scenes(4)
    assert Dataset("made", x, y, 4, ("a", "b", "c")).masks
    with pytest.raises(DataError, match=r"the mask of row 0 holds 2, expected 0 to 1, or 255 for no label"):
        Dataset("made", x, np.where(y == 255, 255, 2).astype(np.uint8), 4, ("a", "b"))
    with pytest.raises(DataError, match=r"masks must be uint8 \[N, H, W\] beside uint8 images"):
        Dataset("made", x[:, :6], y, 4, ("a", "b", "c"))


def test_the_rarest_class_takes_its_folder_first() -> None:
    pixels = np.array([[9, 1, 0], [8, 0, 2], [5, 4, 1], [4, 6, 0], [7, 3, 0]])  # class 2 is rarest, then 1
    order = np.array([0, 1, 2])
    # five images for three classes: quotas 2, 2, 1; class 2 takes row 1, class 1 rows 3 and 2, class 0 what is left
    assert folders(pixels, order).tolist() == [0, 2, 1, 1, 0]


def test_an_image_s_share_is_of_its_labelled_pixels() -> None:
    assert folders(np.array([[7, 3], [0, 2]]), np.array([0, 1])).tolist() == [0, 1], "2 of 2 are more than 3 of 10"


def test_a_tie_goes_to_the_lower_row() -> None:
    assert folders(np.array([[1, 1], [1, 1]]), np.array([0, 1])).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("factor", "sizes"),
    [(10, [34, 27, 21, 17, 13, 10, 8, 6, 5, 4, 3]), (100, [34, 21, 13, 8, 5, 3, 2, 1, 1, 1, 1])],
)
def test_long_tails_of_camvid(factor: float, sizes: list[int]) -> None:
    assert tail_sizes(34, 11, factor).tolist() == sizes


def federation(**keys: Any) -> Any:
    return polyfed.federation(**masked.settings(**keys))


def test_a_client_owns_its_folder_and_reads_the_rest_as_background() -> None:
    made = federation(**{"split.beta": 1, "split.test": "none"})
    assert len(made.clients) == masked.CLASSES
    for client in made.clients:
        own = made.split.owned[client.id].tolist()
        assert own == [client.id]
        assert set(client.train.y.unique().tolist()) <= {client.id, 254, 255}
        assert client.counts.nonzero().flatten().tolist() == own
        _, y = client.train.take(torch.arange(1))
        assert y.dtype == torch.int64
    assert set(made.global_test.y.unique().tolist()) <= {0, 1, 2, 255}
    assert made.pool.y.dtype == torch.uint8


def test_a_background_may_have_no_label_or_be_a_class_of_its_own() -> None:
    keys = {"split.beta": 2, "split.test": "none"}
    left_out = federation(data=masked.source(background="ignore"), **keys)
    further = federation(data=masked.source(background="class"), **keys)
    merged = federation(**keys)
    assert (left_out.outputs, further.outputs, merged.outputs) == (3, 4, 3)
    for one, other, third in zip(left_out.clients, further.clients, merged.clients, strict=True):
        behind = third.train.y == 254
        assert bool(behind.any())
        assert set(one.train.y[behind].tolist()) == {255}
        assert set(other.train.y[behind].tolist()) == {3}
        assert torch.equal(other.train.y[~behind], third.train.y[~behind])
        assert one.counts.tolist() == other.counts.tolist() == third.counts.tolist()
        assert (one.train.owned, other.train.owned) == (None, None)
    with pytest.raises(UsageError, match=r"data\.background=ignore leaves client 0 one class: set split\.beta=2"):
        federation(data=masked.source(background="ignore"), **{"split.beta": 1})
    everybody = {"data": masked.source(background="class"), "split.partition": "iid", "split.clients": 2}
    assert polyfed.federation(model="lraspp-small", **everybody).outputs == 3, "who owns all classes has no background"


def test_more_owned_classes_are_seen_ones_and_drawn_by_the_seed() -> None:
    one, same = (federation(**{"split.beta": 2}).split for _ in range(2))
    assert [o.tolist() for o in one.owned] == [o.tolist() for o in same.owned]
    assert all(len(o) == 2 and k in o for k, o in enumerate(one.owned))
    seen = federation(**{"split.beta": 2, "split.test": "none"})
    for o, client in zip(seen.split.owned, seen.clients, strict=True):
        assert set(o.tolist()) <= set(client.train.pool.y[client.train.rows].unique().tolist()), "what its images show"
    assert one.digest() == same.digest() != federation(**{"split.beta": 3}).split.digest()


def test_copies_cut_a_folder_in_equal_parts() -> None:
    made = federation(**{"split.copies": 2, "split.test": "none"})
    assert [len(c.train) for c in made.clients] == [2] * 6
    with pytest.raises(UsageError, match=r"split.clients=4: 3 folders with split.copies=1 are 3"):
        federation(**{"split.clients": 4})
    with pytest.raises(UsageError, match=r"split.copies=9: at most 4 would do"):
        federation(**{"split.copies": 9})


def test_a_long_tail_goes_by_pixels_and_leaves_every_folder_an_image() -> None:
    made = federation(**{"split.longtail": 100, "split.test": "none"})
    sizes = [len(made.clients[c].train) for c in made.dataset.order]
    assert sizes == [4, 1, 1]


def test_a_mirrored_test_has_the_long_tail_of_training() -> None:
    x, y = masked.scenes(24)
    y[y != 255] = 2 - y[y != 255]  # so that the order by pixels is not that of the labels
    data = Arrays.hold(x[:12], y[:12], x[12:], y[12:])
    made = federation(data=data, **{"split.longtail": 100, "split.test": "mirror"})
    order = made.dataset.order
    assert order.tolist() != [0, 1, 2]
    assert [len(made.clients[c].train) for c in order] == [4, 1, 1]
    assert [len(made.clients[c].test) for c in order] == [4, 1, 1]


def test_class_folders_are_for_masks() -> None:
    with pytest.raises(UsageError, match=r"split.partition=class-folders needs masks"):
        polyfed.federation(data="digits", **{"split.partition": "class-folders"})


def test_other_partitions_own_all_classes() -> None:
    made = polyfed.federation(data=masked.source(), model="lraspp-small", split={"partition": "iid", "clients": 2})
    assert made.split.owned == ()
    assert made.clients[0].train.owned is None


def test_sizes_are_height_and_width() -> None:
    made = federation(data=masked.source(size=[6, 8]))
    assert made.shape == (3, 6, 8)
    assert made.pool.y.shape[1:] == (6, 8)
    assert made.preparation.model_shape == (3, 6, 8)
    mask = np.arange(16, dtype=np.uint8).reshape(1, 4, 4)
    assert resized_masks(mask, 2).tolist() == [[[5, 7], [13, 15]]]
    with pytest.raises(UsageError, match=r"expected a whole number from 1 on or 'auto', or a height and a width"):
        sources.build({"name": "camvid", "size": [3, 4, 5]}, "data")


def test_masks_are_resized_with_their_images_and_corruption_leaves_them() -> None:
    plain, foggy = (federation(data=masked.source(size=[6, 8], corrupt=kind)) for kind in ("none", "fog"))
    assert foggy.notes == {"resized": 8, "corrupted": 15}
    assert foggy.as_trained.corrupted
    assert np.array_equal(foggy.as_trained.class_pixels, foggy.dataset.class_pixels)  # counted before resizing
    assert np.array_equal(foggy.as_trained.y, plain.as_trained.y)
    assert not np.array_equal(foggy.as_trained.x, plain.as_trained.x)


def test_who_owns_fewer_classes_than_asked_for_is_counted() -> None:
    assert federation(**{"split.beta": 9}).notes["clients_owning_fewer_classes"] == masked.CLASSES
    assert "clients_owning_fewer_classes" not in federation(**{"split.beta": 1}).notes


@pytest.mark.parametrize("kind", ["flip", "crop", "crop+flip"])
def test_image_and_mask_move_together(kind: str) -> None:
    mask = torch.randint(0, 9, (6, 16, 24))
    image = mask[:, None].float()
    change = augmenter(kind, torch.tensor([255.0]).view(1, 1, 1))
    assert change is not None
    x, y = change.both(image, mask, torch.Generator().manual_seed(0))
    assert torch.equal(x[:, 0], y.float())  # what comes in from outside is 255 in both
    assert not torch.equal(y, mask)
    assert torch.equal(change(image, torch.Generator().manual_seed(0)), x)  # one and the same draw


# ---- sources


def test_own_folders_of_images_and_masks(tmp_path: Path) -> None:
    x, y = masked.scenes(4)
    for row in range(4):
        home = tmp_path / f"client{row % 2}"
        masked.picture(home / "images" / f"{row}.png", x[row])
        masked.picture(home / "masks" / f"{row}.png", y[row])
    found = sources.build({"name": "folder", "root": str(tmp_path)}, "data").load()
    assert found.masks
    assert found.user_names == ("client0", "client1")
    assert np.array_equal(found.y, y[[0, 2, 1, 3]])
    assert np.array_equal(found.x, x[[0, 2, 1, 3]])
    (tmp_path / "client0" / "README.md").write_text("a file beside the folders changes nothing")
    masked.picture(tmp_path / "client0" / "masks" / "9.png", y[0])  # of no picture
    again = sources.build({"name": "folder", "root": str(tmp_path)}, "data").load()
    assert (len(again.y), again.masks, again.notes) == (4, True, {"files_skipped": 2})
    (tmp_path / "client1" / "masks" / "3.png").unlink()
    with pytest.raises(DataError, match=r"images/3.png has no mask; expected .*masks/3.png"):
        sources.build({"name": "folder", "root": str(tmp_path)}, "data").load()


def own_folder(home: Path, x: np.ndarray, y: np.ndarray, **settings: Any) -> Any:
    """One client's pictures and masks as a source."""
    for row in range(len(x)):
        masked.picture(home / "client" / "images" / f"{row}.png", x[row])
        masked.picture(home / "client" / "masks" / f"{row}.png", y[row])
    return sources.build({"name": "folder", "root": str(home), **settings}, "data")


@pytest.mark.parametrize("settings", [{}, {"size": [6, 8]}])
def test_a_mask_of_another_size_than_its_picture_is_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    x, y = masked.scenes(2)
    own_folder(tmp_path, x, y)
    masked.picture(tmp_path / "client" / "masks" / "1.png", y[1, :6])
    with pytest.raises(DataError, match=r"images/1.png has 16 x 12 pixels, and its mask .*masks/1.png 16 x 6"):
        sources.build({"name": "folder", "root": str(tmp_path), **settings}, "data").load()


@pytest.mark.parametrize("settings", [{}, {"size": [6, 8]}])
def test_a_scene_of_another_size_than_its_picture_is_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    x, y = masked.scenes(2)
    for row, part in enumerate(("train", "test")):
        masked.picture(tmp_path / part / f"0001TP_{row}.png", x[row])
        masked.picture(tmp_path / f"{part}annot" / f"0001TP_{row}.png", y[row, :, : 16 - row])
    with pytest.raises(DataError, match=r"test/0001TP_1.png has 16 x 12 .*testannot/0001TP_1.png 15 x 12"):
        sources.build({"name": "camvid", "root": str(tmp_path), **settings}, "data").load()


def test_pixels_of_own_masks_are_counted_before_resizing(tmp_path: Path) -> None:
    x, _ = masked.scenes(2)
    y = np.zeros((2, 12, 16), np.uint8)
    y[:, ::2] = 1  # every second line, and
    y[0, 0, 0] = 2  # one pixel, that a quarter of the size loses
    small = own_folder(tmp_path, x, y, size=[6, 8]).load()
    assert small.y.shape == (2, 6, 8)
    assert np.unique(small.y).tolist() == [0]
    assert small.class_names == ("0", "1", "2")
    assert small.class_pixels.tolist() == [[96, 95, 1], [96, 96, 0]]


def test_small_pictures_beside_masks_have_the_bits_of_pictures_alone(tmp_path: Path) -> None:
    x, y = masked.scenes(2)
    x[1] = x[1, :, :, :1]  # in colour, but all grey
    small = own_folder(tmp_path, x, y, size=[6, 8]).load()
    alone = [read_image(tmp_path / "client" / "images" / f"{row}.png", (6, 8)) for row in range(2)]
    assert np.array_equal(small.x, np.stack(alone))


@pytest.mark.parametrize(("settings", "most"), [({"classes": 3}, 2), ({"classes": ["a", "b"], "size": [6, 8]}, 1)])
def test_an_unknown_value_of_a_mask_names_its_file(tmp_path: Path, settings: dict[str, Any], most: int) -> None:
    x, y = masked.scenes(3)
    y[y != 255] = 0
    y[2, 1, 1] = 7
    with pytest.raises(DataError, match=rf"masks/2.png holds 7, expected 0 to {most}, or 255 for no label"):
        own_folder(tmp_path, x, y, **settings).load()


def test_no_class_is_called_by_a_code(tmp_path: Path) -> None:
    x, y = masked.scenes(2)
    y[1, 1, 1] = 254
    with pytest.raises(DataError, match=r"masks/1.png holds 254, expected 0 to 253, or 255 for no label"):
        own_folder(tmp_path, x, y).load()


def test_an_unknown_value_of_a_mask_in_arrays_names_their_file(tmp_path: Path) -> None:
    x, y = masked.scenes(4)
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    np.savez(tmp_path / "one" / "a.npz", x=x, y=y)
    y[3, 1, 1] = 9
    np.savez(tmp_path / "two" / "b.npz", x=x, y=y)
    with pytest.raises(DataError, match=r"two/b.npz: the mask of row 3 holds 9, expected 0 to 2"):
        sources.build({"name": "folder", "root": str(tmp_path), "classes": 3}, "data").load()


def test_cityscapes_in_its_official_layout(tmp_path: Path) -> None:
    x, _ = masked.scenes(3)
    labels = np.zeros((12, 16), np.uint8)
    labels[:3], labels[3:6] = 7, 33  # road and bicycle; 0 is unlabelled
    for row, (part, city) in enumerate([("train", "aachen"), ("train", "bonn"), ("val", "ulm")]):
        name = f"{city}_00000{row}_000019"
        masked.picture(tmp_path / "leftImg8bit" / part / city / f"{name}_leftImg8bit.png", x[row])
        masked.picture(tmp_path / "gtFine" / part / city / f"{name}_gtFine_labelIds.png", labels)
    found = sources.build({"name": "cityscapes", "root": str(tmp_path), "size": [6, 8]}, "data").load()
    assert (found.train, found.classes, found.domain_names) == (2, 19, ("aachen", "bonn", "ulm"))
    assert found.x.shape == (3, 6, 8, 3)
    assert np.unique(found.y).tolist() == [0, 18, 255]
    assert found.class_pixels[0, [0, 18]].tolist() == [48, 48]  # counted before resizing
    assert sources.build("cityscapes", "data").size == (256, 512)
    with pytest.raises(DataError, match=r"leftImg8bit/train.* and gtFine/train"):
        sources.build({"name": "cityscapes", "root": str(tmp_path / "nowhere")}, "data").load()


def test_values_of_files_are_read_as_the_official_classes() -> None:
    """In order of their ids; every other value of a file has no label."""
    told = {
        "camvid": (range(11), "Sky Building Pole Road Pavement Tree SignSymbol Fence Car Pedestrian Bicyclist"),
        "cityscapes": (
            [7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33],
            "road sidewalk building wall fence pole traffic-light traffic-sign vegetation terrain sky person rider car "
            "truck bus train motorcycle bicycle",
        ),
    }
    for name, (values, classes) in told.items():
        source = sources.build(name, "data")
        assert source.class_names() == tuple(classes.split())
        table = source.table()
        assert table[list(values)].tolist() == list(range(len(values)))
        assert set(np.delete(table, list(values)).tolist()) == {255}


def test_camvid_in_its_official_layout(tmp_path: Path) -> None:
    x, y = masked.scenes(3)
    for row, part in enumerate(("train", "val", "test")):
        masked.picture(tmp_path / part / f"0001TP_{row}.png", x[row])
        masked.picture(tmp_path / f"{part}annot" / f"0001TP_{row}.png", np.where(y[row] == 255, 11, y[row]))
    found = sources.build({"name": "camvid", "root": str(tmp_path), "test": "both"}, "data").load()
    assert (len(found.x), found.train, found.domain_names) == (3, 1, ("0001TP",))
    assert np.array_equal(found.y, y)
    assert found.notes == {"places_in_train_and_test": 1}
    tested = {
        part: sources.build({"name": "camvid", "root": str(tmp_path), "test": part}, "data").load()
        for part in ("test", "val")
    }
    assert np.array_equal(tested["test"].y[1:], y[2:])
    assert np.array_equal(tested["val"].y[1:], y[1:2])
    masked.picture(tmp_path / "testannot" / "0001TP_2.png", np.full_like(y[2], 12))
    with pytest.raises(DataError, match=r"testannot/0001TP_2.png holds 12, expected 0 to 11, or 255"):
        sources.build({"name": "camvid", "root": str(tmp_path)}, "data").load()


def test_drives_of_camvid_may_be_its_clients(tmp_path: Path) -> None:
    x, y = masked.scenes(9)
    for row in range(9):
        part, drive = "test" if row == 8 else "train", ("0001TP", "0006R0")[row % 2]
        masked.picture(tmp_path / part / f"{drive}_{row}.png", x[row])
        masked.picture(tmp_path / f"{part}annot" / f"{drive}_{row}.png", np.where(y[row] == 255, 11, y[row]))
    keys = {"data": {"name": "camvid", "root": str(tmp_path)}, "model": "lraspp-small", "split.partition": "domains"}
    made = polyfed.federation(keys, **{"split.clients": 2, "split.test": "none"})
    assert [(c.name, len(c.train)) for c in made.clients] == [("0001TP-0", 4), ("0006R0-1", 4)]
    assert made.split.owned == (), "they own all classes"
    assert sources.build("camvid", "data").natural_partition == "class-folders"


@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "camvid.npz").exists(), reason="skipped: no data")
def test_camvid_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SHARED))
    import medcodec

    data = medcodec.load(SHARED / "camvid.npz")
    rows = np.flatnonzero(data["split"] == 0)
    masks = np.where(data["mask"][rows].squeeze() == 11, 255, data["mask"][rows].squeeze()).astype(np.uint8)
    made = Dataset("camvid", data["x"][rows], masks, len(rows), sources.get("camvid")().class_names())
    shares = made.class_pixels.sum(0) / made.class_pixels.sum()
    expected = [0.176, 0.242, 0.010, 0.328, 0.047, 0.101, 0.012, 0.012, 0.061, 0.007, 0.003]
    np.testing.assert_allclose(shares, expected, atol=6e-4)
    assert np.bincount(made.labels).tolist() == [34, 34, 33, 34, 33, 34, 33, 33, 33, 33, 33]
    assert (made.class_pixels[np.arange(len(rows)), made.labels] > 0).all(), "every image shows its class"
    sys.modules.pop("medcodec", None)
