"""Street scenes with a class for every pixel: CamVid and Cityscapes, in their official layouts."""

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from polyfed.data.samples import VOID
from polyfed.data.sources.base import Background, Dataset, Size, Source, background_of_masks, size_of_images, source
from polyfed.data.sources.masks import class_pixels, read_pair, resized_masks
from polyfed.data.sources.raw import pixel_statistics
from polyfed.errors import DataError
from polyfed.registry import param

CAMVID = (
    "Sky", "Building", "Pole", "Road", "Pavement", "Tree", "SignSymbol", "Fence", "Car", "Pedestrian", "Bicyclist",
)  # fmt: skip
CITYSCAPES = {
    7: "road", 8: "sidewalk", 11: "building", 12: "wall", 13: "fence", 17: "pole", 19: "traffic-light",
    20: "traffic-sign", 21: "vegetation", 22: "terrain", 23: "sky", 24: "person", 25: "rider", 26: "car", 27: "truck",
    28: "bus", 31: "train", 32: "motorcycle", 33: "bicycle",
}  # fmt: skip


class Scene(NamedTuple):
    """One picture, its mask, and where it was taken."""

    image: Path
    mask: Path
    place: str


class Streets(Source):
    """Pictures of streets with their masks; `domains` are where they were taken."""

    of_pictures: ClassVar[bool] = True
    highest: ClassVar[int] = VOID  # value of a mask that means something; above it, 255 alone does
    background: Background = background_of_masks()

    @property
    def natural_partition(self) -> str:
        """FedSeg's."""
        return "class-folders"

    def scenes(self, part: str) -> list[Scene]:
        """The scenes of one official part, in order."""
        raise TypeError(f"{type(self).__name__} must say where its scenes are")

    def tests(self) -> tuple[str, ...]:
        """The official parts that are tested on."""
        return ("val",)

    def table(self) -> np.ndarray:
        """What each of the 256 values of a file is read as."""
        raise TypeError(f"{type(self).__name__} must say which classes there are")

    def class_names(self) -> tuple[str, ...]:
        """The classes, in the order of their ids."""
        raise TypeError(f"{type(self).__name__} must say what its classes are called")

    def load(self) -> Dataset:
        train = self.scenes("train")
        tests = [scene for part in self.tests() for scene in self.scenes(part)]
        scenes, names, table = [*train, *tests], self.class_names(), self.table()
        side = None if self.size == "auto" else self.size
        x, y, pixels = [], [], []
        for scene in scenes:
            image, read = read_pair(scene.image, scene.mask, side)
            self._check_values(scene.mask, read)
            mask = table[read]
            pixels.append(class_pixels(mask[None], len(names)))
            y.append(mask if side is None else resized_masks(mask[None], side)[0])
            x.append(image)
            if image.shape != x[0].shape:
                raise DataError(
                    f"{self.name}: {scene.image} has {list(image.shape)} pixels, and the first picture "
                    f"{list(x[0].shape)}; data.size=[H, W] brings all to one size"
                )
        images = np.stack(x)
        known, domains = np.unique([scene.place for scene in scenes], return_inverse=True)
        both = np.intersect1d(domains[: len(train)], domains[len(train) :])
        return Dataset(
            self.name, images, np.stack(y), len(train), names, *pixel_statistics(images[: len(train)]),
            domains=domains, domain_names=tuple(known.tolist()), pixels=np.concatenate(pixels),
            notes={"places_in_train_and_test": len(both)} if len(both) else {},
        )  # fmt: skip

    def _check_values(self, file: Path, read: np.ndarray) -> None:
        strange = read[(read > self.highest) & (read != VOID)]
        if strange.size:
            raise DataError(f"{self.name}: {file} holds {strange[0]}, expected 0 to {self.highest}, or {VOID}")


@source("camvid", paper="Brostow et al. 2009")
class CamVid(Streets):
    """CamVid as SegNet's authors give it: 367 pictures to train on, 101 and 233 to test on, of four drives."""

    highest: ClassVar[int] = len(CAMVID)  # of no class
    test: Literal["test", "val", "both"] = param("test", "the official part that is tested on")

    def tests(self) -> tuple[str, ...]:
        return ("val", "test") if self.test == "both" else (self.test,)

    def class_names(self) -> tuple[str, ...]:
        return CAMVID

    def table(self) -> np.ndarray:
        made = np.full(256, VOID, np.uint8)
        made[: len(CAMVID)] = np.arange(len(CAMVID))
        return made

    def scenes(self, part: str) -> list[Scene]:
        home = next((f for f in (self.home(), self.home() / "CamVid") if (f / part).is_dir()), self.home())
        images = _files(self.name, home / part, "*.png", f"{part}/NAME.png and {part}annot/NAME.png")
        found = [Scene(image, home / f"{part}annot" / image.name, image.name.partition("_")[0]) for image in images]
        return _paired(self.name, found)


@source("cityscapes", paper="Cordts et al. 2016")
class Cityscapes(Streets):
    """Cityscapes: 2975 pictures to train on and 500 to test on, by cities; it needs registration at its home."""

    highest: ClassVar[int] = max(CITYSCAPES)
    size: Size = size_of_images((256, 512))

    def class_names(self) -> tuple[str, ...]:
        return tuple(CITYSCAPES.values())

    def table(self) -> np.ndarray:
        made = np.full(256, VOID, np.uint8)
        made[list(CITYSCAPES)] = np.arange(len(CITYSCAPES))
        return made

    def scenes(self, part: str) -> list[Scene]:
        home, ending = self.home(), "_leftImg8bit.png"
        expected = f"leftImg8bit/{part}/CITY/*{ending} and gtFine/{part}/CITY/*_gtFine_labelIds.png"
        images = _files(self.name, home / "leftImg8bit" / part, f"*/*{ending}", expected)
        truth = home / "gtFine" / part
        name = "{}_gtFine_labelIds.png"
        found = [
            Scene(image, truth / image.parent.name / name.format(image.name.removesuffix(ending)), image.parent.name)
            for image in images
        ]
        return _paired(self.name, found)


def _files(name: str, folder: Path, pattern: str, expected: str) -> list[Path]:
    found = sorted(folder.glob(pattern)) if folder.is_dir() else []
    if not found:
        raise DataError(f"{name}: {folder} holds no pictures; expected {expected} under data.root, from its home")
    return found


def _paired(name: str, scenes: Iterable[Scene]) -> list[Scene]:
    made = list(scenes)
    for scene in made:
        if not scene.mask.is_file():
            raise DataError(f"{name}: {scene.image} has no mask; expected it at {scene.mask}")
    return made
