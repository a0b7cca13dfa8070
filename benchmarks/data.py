"""The data of the cells: what is not there is fetched, once in a sitting."""

from collections.abc import Callable

from benchmarks.cells import Cell
from benchmarks.measure import Failed, Side, finished
from benchmarks.whole import polyfed

EMBEDDED = "digits"  # always there


def name_of(cell: Cell) -> str:
    """The data set a cell is measured on."""
    data = cell.work.get("tree", {}).get("data", EMBEDDED)
    return str(data["name"] if isinstance(data, dict) else data)


class Shelf:
    """What data sets are there, asked once for each."""

    def __init__(self, fetch: Callable[[Side], object] = finished) -> None:
        self.fetch = fetch
        self.complaints: dict[str, str] = {}

    def want(self, name: str, say: Callable[[str], None]) -> None:
        """Make sure that a data set is there, or fail with why it is not."""
        if name not in self.complaints:
            self.complaints[name] = "" if name == EMBEDDED else self._complaint(name, say)
        if self.complaints[name]:
            raise Failed(self.complaints[name])

    def _complaint(self, name: str, say: Callable[[str], None]) -> str:
        say(f"{name}: looking for it, fetching it if it is not there")
        try:
            self.fetch(polyfed("data", "get", name, "--quiet"))
        except Failed as failure:
            return str(failure)
        return ""
