"""Trial runs for trackers."""

from trials import crews, trial

__all__ = ["crews", "trial"]
