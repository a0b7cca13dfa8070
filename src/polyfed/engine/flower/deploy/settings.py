"""What federation.yaml and site.yaml hold, and how they are read."""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from polyfed.config import read_yaml
from polyfed.errors import DataError
from polyfed.registry import Typed, explain, param

LAST_PORT = 65535


class FederationFile(Typed):
    """What federation.yaml holds."""

    sites: list[str] = param(..., "the sites' names")
    host: str = param(..., "the name or address at which sites reach the server")
    port: int = param(..., "the guard's port, the only one that is open to others", ge=1, le=LAST_PORT)
    link: int = param(..., "the SuperLink's port, on this machine only", ge=1, le=LAST_PORT)
    mutual: bool = param(False, "the guard listens only to whoever shows a certificate of a site")


class LeastPrivacy(Typed):
    """The least privacy that a site accepts: the most that all runs together may cost it, by its own count."""

    epsilon: float = param(..., "the most that all runs together may spend on this site's samples", gt=0)
    delta: float = param(1e-5, "the delta at which this is counted", gt=0, lt=1)
    reports: bool = param(False, "whether a run may ask for losses and confusion counts, which no noise covers")
    classes_known: bool = param(False, "whether a method may know which classes this site holds")


class SiteFile(Typed):
    """What site.yaml holds."""

    name: str = param(..., "the site's name")
    server: str = param(..., "host:port of the guard")
    port: int = param(..., "where the SuperNode listens on this machine", ge=1, le=LAST_PORT)
    data: str = param(..., "the folder of this site's samples")
    disclose: Any = param(..., "what the server is told of the data: n or counts")
    mutual: bool = param(False, "show the guard this site's certificate")
    allow: list[str] = param([], "methods and models outside polyfed that the server may name, as module:Class")
    privacy: LeastPrivacy | None = param(None, "the least privacy (dp-sgd) under which this site works")


def read_settings(kind: Any, path: Path, otherwise: str) -> Any:
    """The settings of a kind in a file; a mistake in it is one sentence."""
    if not path.is_file():
        raise DataError(otherwise)
    try:
        tree = read_yaml(path.read_text(encoding="utf-8"), str(path))
        if not isinstance(tree, dict) or any(not isinstance(key, str) for key in tree):
            raise DataError(f"{path} must hold keys and values")
        return kind(**tree)
    except ValidationError as error:
        raise DataError(f"{path}: {explain(error, '', set(kind.model_fields), path.name)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
