"""What a model was made with: the installed packages as a CycloneDX bill of materials, to lie beside an export."""

from importlib import metadata
from typing import Any
from urllib.parse import quote

LONGEST = 80  # characters of a licence that is not a name; some packages put the whole text there


def bill_of_materials() -> dict[str, Any]:
    """Every installed package with its version and licence, in CycloneDX 1.6; the same packages give the same bill."""
    found = {_plain(each.metadata["Name"]): each for each in metadata.distributions() if each.metadata["Name"]}
    ours = found.pop("polyfed", None)
    about = {"component": _component("polyfed", ours)} if ours else {}
    components = [_component(name, found[name]) for name in sorted(found)]
    return {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "metadata": about, "components": components}


def _component(name: str, package: metadata.Distribution) -> dict[str, Any]:
    purl = f"pkg:pypi/{name}@{quote(package.version, safe='.')}"
    made = {"type": "library", "name": name, "version": package.version, "purl": purl, "bom-ref": purl}
    said = licence(package)
    return made | ({"licenses": [said]} if said else {})


def licence(package: metadata.Distribution) -> dict[str, Any] | None:
    """What a package states: an SPDX expression, or the name it gives its licence."""
    stated, text = (" ".join(package.metadata.get_all(key) or []).strip() for key in ("License-Expression", "License"))
    if stated:
        return {"expression": stated}
    kinds = [kind.split(" :: ")[-1] for kind in package.metadata.get_all("Classifier") or [] if "License ::" in kind]
    name = ", ".join(kinds) or (text if len(text) <= LONGEST and "\n" not in text else "")
    return {"license": {"name": name}} if name else None


def _plain(name: str) -> str:
    """A package's name as the index writes it."""
    return name.lower().replace("_", "-").replace(".", "-")
