"""Trial runs to use."""

from trials import crews, own, resnet, trial

__all__ = ["crews", "own", "resnet", "trial"]
