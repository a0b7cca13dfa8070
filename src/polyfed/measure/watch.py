"""Who looks on while a run goes on."""

from typing import Any, Protocol


class Watch(Protocol):
    """Who looks on: the command line's progress, or nobody."""

    def round(self, done: int, rounds: int, numbers: dict[str, Any]) -> None:
        """A round is committed."""

    def say(self, text: str) -> None:
        """Something a person should know."""


class Silent:
    """Nobody looks on."""

    def round(self, done: int, rounds: int, numbers: dict[str, Any]) -> None:
        """Not shown."""

    def say(self, text: str) -> None:
        """Not shown."""
