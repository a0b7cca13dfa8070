"""Trial runs to use."""

from trials import own, resnet, trial

__all__ = ["own", "resnet", "trial"]
