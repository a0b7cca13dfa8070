"""What is told about the progress of a run while it is under way."""

from typing import Any, Protocol


class Watch(Protocol):
    """Receives the progress of a run, for example to show it on the command line."""

    def round(self, done: int, rounds: int, numbers: dict[str, Any]) -> None:
        """A round is committed."""

    def say(self, text: str) -> None:
        """A line for people was written to the log."""


class Silent:
    """A watch that shows nothing."""

    def round(self, done: int, rounds: int, numbers: dict[str, Any]) -> None:
        """Not shown."""

    def say(self, text: str) -> None:
        """Not shown."""
