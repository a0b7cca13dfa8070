"""What people read where records hold keys: a method by the name that its paper gives it."""

import re

from polyfed.methods.base import methods

LABEL = re.compile(r"(?P<name>[^,\s]+)(?P<rest>|, .*| [(·].*)", re.S)  # a method, and what says more of it


def as_written(label: str) -> str:
    """A label with its methods as papers write them: `mupfl, m=50` becomes `MuPFL, m=50`; other words stay."""
    return " − ".join(map(_as_written, label.split(" − ")))


def _as_written(label: str) -> str:
    found = LABEL.fullmatch(label)
    return f"{methods.as_written(found['name'])}{found['rest']}" if found else label
