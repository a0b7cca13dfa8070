"""Trial runs of the engines."""

from trials import crews, own, resnet, trial, workers

__all__ = ["crews", "own", "resnet", "trial", "workers"]
