"""The smallest demo: how many samples the classes of a long tail have."""

from pydantic import Field

from polyfed.data.longtail import tail_sizes
from polyfed.papers.demos import Demo, DemoKeys, demo


class Keys(DemoKeys):
    """How many samples the largest class has, how many classes there are, and the imbalance factor."""

    largest: int = Field(5000, ge=1)
    classes: int = Field(10, ge=2)
    factor: float = Field(10.0, ge=1)


@demo("tail", Keys)
def tail(seed: int, keys: Keys) -> Demo:
    """The sizes of all classes; no chance is involved."""
    sizes = tail_sizes(keys.largest, keys.classes, keys.factor)
    return Demo({"all": {"samples": float(sizes.sum()), "smallest": float(sizes.min())}}, {"sizes": sizes})
