"""A picture of an item and its data, as files."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyfed.files import write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 110


@dataclass(frozen=True)
class Picture:
    """A picture and its data."""

    figure: "Figure"
    table: str  # CSV

    def png(self) -> bytes:
        """The picture as a PNG file; the same picture gives the same bytes."""
        content = io.BytesIO()
        self.figure.savefig(content, format="png", dpi=DPI, metadata={"Software": None}, bbox_inches="tight")
        return content.getvalue()

    def save(self, path: Path) -> Path:
        """Write the PNG, and its data beside it; where the data are."""
        write_file(path, self.png())
        write_file(path.with_suffix(".csv"), self.table.encode())
        return path.with_suffix(".csv")

    def close(self) -> None:
        """Free the figure."""
        from matplotlib import pyplot

        pyplot.close(self.figure)


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows with the same keys as a CSV file."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
