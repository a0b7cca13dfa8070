"""MAP's Figure 7: accuracy on some classes, by a network trained on these alone and by one trained on all."""

from collections.abc import Iterable, Sequence

from polyfed.config import Tree
from polyfed.papers.demos import Demo, demo
from polyfed.papers.demos.lone import NetworkKeys, lone_learner, lone_training, of_first, share_right
from polyfed.parts.losses import cross_entropy

ALL = 100
ALONE, AMONG_ALL, GAP = "trained on the targets", "trained on all classes", "gap"


class Keys(NetworkKeys):
    """How many classes are targeted, the network, and how it is trained."""

    tiny = {"targets": (2, 4), "limit": 2, "epochs": 1.0, "width": 0.05, "batch": 16}
    targets: tuple[int, ...] = (10, 20, 30, 40, 50, 60, 70, 80)
    network: str = "vgg16-bn"

    def trains(self) -> Iterable[tuple[Tree, float]]:
        """A network with all classes, and one for each number of targets."""
        for many in (ALL, *self.targets):
            yield lone_training(self.experiment("cifar100"), many)


@demo("targets", Keys)
def targets(seed: int, keys: Keys) -> Demo:
    """One network sees all of CIFAR-100; others see the first classes only. All answer with any class."""
    experiment = keys.experiment("cifar100")
    everything = _accuracies(seed, experiment, ALL, keys.targets)
    numbers = {}
    for many in keys.targets:
        alone, among = _accuracies(seed, experiment, many, (many,))[many], everything[many]
        numbers[f"{many} classes"] = {ALONE: alone, AMONG_ALL: among, GAP: alone - among}
    return Demo(numbers)


def _accuracies(seed: int, experiment: Tree, trained: int, asked: Sequence[int]) -> dict[int, float]:
    """Train on the first so many classes; the accuracy on the tests of each asked number of first classes."""
    world, client = lone_learner(seed, experiment, trained)
    client.fit(cross_entropy)
    test = world.federation.global_test
    return {many: share_right(client.model, of_first(test, many), ALL) for many in asked}
