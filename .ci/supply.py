"""What is installed: its hashes, its licences, what is known against it. Needs nothing but Python and pip.

supply.py install FILE     the packages of FILE, each compared with its hashes
supply.py hashes           writes requirements.txt, -docs.txt, -extras.txt and -aside.txt from constraints.txt
supply.py licences         every installed package with its licence
supply.py audit            asks pip-audit what is known against the versions of constraints.txt
"""

import compileall
import hashlib
import json
import re
import subprocess
import sys
import sysconfig
import tempfile
import urllib.request
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

from pip._internal.models.index import PyPI
from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import (
    InvalidWheelFilename,
    canonicalize_name,
    parse_wheel_filename,
)
from pip._vendor.packaging.version import InvalidVersion, Version

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS, BASE, DOCS, EXTRAS, ASIDE = (
    ROOT / f"{name}.txt"
    for name in ("constraints", *(f"requirements{part}" for part in ("", "-docs", "-extras", "-aside")))
)
ALIKE = ("any", "manylinux", "linux", "macosx")  # how the platforms of a wheel we may need begin
PYTHONS = ("cp311", "cp312", "cp313", "py311", "py312", "py313", "py3", "py2.py3")
TESTS = re.compile(r"[/\\\\]tests?[/\\\\]")  # folders that nobody imports
OTHER_FILES = "DO NOT MATCH THE HASHES"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


def pinned(file: Path) -> dict[str, str]:
    """The versions a file of requirements pins, by name."""
    lines = file.read_text(encoding="utf-8").splitlines()
    pairs = [line.split(";")[0].split(" ")[0].split("==") for line in lines if re.match(r"[A-Za-z0-9]", line)]
    return {canonicalize_name(name): version for name, version in pairs}


def aside() -> set[str]:
    """The packages of extras that no target of the Makefile installs: constraints.txt lists them last."""
    listed = CONSTRAINTS.read_text(encoding="utf-8").partition("# Aside: ")[2]
    return {canonicalize_name(line.split("==")[0]) for line in listed.splitlines() if "==" in line}


# ---- installing


def install(file: Path) -> int:
    """Install what is listed, if the index has these very files; other files of the same versions are refused."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as listed:
        listed.write(settled(file.read_text(encoding="utf-8")))
        listed.flush()
        words = ["install", "--quiet", "--no-compile", "--require-hashes", "--no-deps", "--only-binary=:all:"]
        done = subprocess.run([*PIP, *words, "-r", listed.name], stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode == 0:
        if file == BASE:  # of the rest a process of the slow tests writes what it imports
            write_bytecode({Path(sysconfig.get_path(lib)) for lib in ("purelib", "platlib")})
        return 0
    if OTHER_FILES in done.stderr:
        sys.stderr.write(done.stderr)
        print(f"The index offers other files than {file.name} knows. If you trust it: make HASHES=no ...")
        return 1
    why = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
    print(f"Hashes are not compared: {why}")
    return 0


def write_bytecode(folders: Iterable[Path]) -> None:
    """Compile what is installed, without its tests, on all cores; pip takes longer for that than for all the rest."""
    for folder in folders:
        compileall.compile_dir(folder, rx=TESTS, quiet=2, workers=0)  # what no Python compiles, pip leaves out as well


def settled(text: str) -> str:
    """The list with torch as the very file pip takes of its own accord: there are builds for CPUs and for GPUs.

    While it compares hashes, pip would take PyPI's, whichever the index or folder it was told of has.
    """
    found = re.search(r"^torch==(\S+)( \\\n    --hash=\S+)+\n", text, re.MULTILINE)
    if not found:
        return text
    words = ["install", "--dry-run", "--quiet", "--no-deps", "--ignore-installed", "--report", "-"]
    done = subprocess.run([*PIP, *words, f"torch=={found[1]}"], capture_output=True, text=True, check=False)
    try:
        chosen = json.loads(done.stdout)["install"][0]["download_info"]
        url, digest = chosen["url"], chosen["archive_info"]["hashes"]["sha256"]
    except (ValueError, LookupError):
        return text
    if digest in found[0]:
        return text.replace(found[0], f"torch @ {url} --hash=sha256:{digest}\n")
    print(f"torch is not compared: pip takes a build of which no hash is known here, {url.rsplit('/', 1)[-1]}")
    return text.replace(found[0], "")


# ---- hashes


def hashes() -> int:
    """Write the four files: what demo and tests need, what the documentation adds, what extras add, what lies aside."""
    versions = pinned(CONSTRAINTS)
    base = closure({"polyfed": {"dev"}}) & versions.keys()
    docs = closure({"polyfed": {"docs"}}) & versions.keys() - base
    head = "# Written by `make hashes` from constraints.txt: every version with the hashes of its files.\n"
    with ThreadPoolExecutor(8) as pool:
        entries = dict(zip(versions, pool.map(entry, versions, versions.values()), strict=True))
    extras = versions.keys() - base - docs - aside()
    for file, names in ((BASE, base), (DOCS, docs), (EXTRAS, extras), (ASIDE, aside())):
        text = "".join(entries[name] for name in sorted(names))
        file.write_text(head + text, encoding="utf-8")
        print(f"{file.name}: {len(names)} packages, {text.count('--hash')} files")
    return 0


def closure(wanted: dict[str, set[str]]) -> set[str]:
    """Everything these packages may need on any platform, as far as it is installed here."""
    found: dict[str, set[str]] = {}
    while wanted:
        name, extras = wanted.popitem()
        if name in found and extras <= found[name]:
            continue
        found[name] = found.get(name, set()) | extras
        try:
            needed = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        for each in map(Requirement, needed):
            marker = str(each.marker or "")
            if "extra ==" not in marker or any(re.search(f"extra == .{extra}.", marker) for extra in extras):
                other = canonicalize_name(each.name)
                wanted[other] = wanted.get(other, set()) | each.extras
    return set(found)


def entry(name: str, version: str) -> str:
    """One requirement with the hashes of its files."""
    known = sorted({*offered(name, version), *nearby(name, version)})
    if not known:
        raise SystemExit(f"the index has no file of {name}=={version} for the platforms polyfed runs on")
    return f"{name}=={version} \\\n" + " \\\n".join(f"    --hash=sha256:{one}" for one in known) + "\n"


def offered(name: str, version: str) -> Iterator[str]:
    """The hashes of a version's files at the package index."""
    with urllib.request.urlopen(f"{PyPI.simple_url}/{name}/", timeout=60) as answer:
        page = answer.read().decode()
    for digest, file in re.findall(r'#sha256=([0-9a-f]{64})"[^>]*>\s*([^<\s]+)', page):
        if fits(file, version):
            yield digest


def nearby(name: str, version: str) -> Iterator[str]:
    """The same of files in the folders pip is told to look into, where a build for CPUs may lie."""
    told = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=True).stdout
    for folder in re.findall(r"find-links='([^']+)'", told):
        for file in Path(folder).glob("*.whl"):
            if canonicalize_name(file.name.split("-")[0]) == name and fits(file.name, version):
                yield hashlib.sha256(file.read_bytes()).hexdigest()


def fits(file: str, version: str) -> bool:
    """Whether a file is a wheel of this version that a supported Python may use."""
    try:
        _, found, _, tags = parse_wheel_filename(file)
    except (InvalidWheelFilename, InvalidVersion):
        return False
    return Version(found.public) == Version(version) and any(
        (tag.interpreter in PYTHONS or tag.abi == "abi3") and tag.platform.startswith(ALIKE) for tag in tags
    )


# ---- licences and advisories


def licences() -> int:
    """Every installed package, as in the bill of materials of an export."""
    from polyfed.use.sbom import bill_of_materials

    components = bill_of_materials()["components"]
    stated = {one["name"]: stated_in(one) for one in components}
    for one in components:
        print(f"{one['name']:32} {one['version']:18} {stated[one['name']]}")
    unknown = [name for name, said in stated.items() if not said]
    print(f"{len(components)} packages; without a stated licence: {', '.join(unknown) or 'none'}")
    return 0


def stated_in(component: dict[str, Any]) -> str:
    """The licence of one line of a bill of materials, or nothing."""
    said = component.get("licenses", [{}])[0]
    return said.get("expression") or said.get("license", {}).get("name", "")


def audit() -> int:
    """What is known against these versions; where nobody can be asked, that is said and is no failure."""
    words = ["-m", "pip_audit", "-r", str(CONSTRAINTS), "--no-deps", "--disable-pip", "-f", "json"]
    done = subprocess.run(
        [sys.executable, *words, "--progress-spinner", "off"], capture_output=True, text=True, check=False
    )
    try:
        found = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        why = (done.stderr.strip().splitlines() or ["pip-audit gave no reason"])[-1]
        print(f"Not audited: {why[:200]}")
        return 0
    asked = [one for one in found if "skip_reason" not in one]
    bad = [(one["name"], one["version"], known["id"]) for one in asked for known in one["vulns"]]
    for row in bad:
        print("{} {}: {}".format(*row))
    if not asked:
        print(f"Not audited: the advisory service answers for none of the {len(found)} packages.")
    else:
        print(f"{len(asked)} of {len(found)} packages audited, {len(bad)} advisories")
    return 1 if bad else 0


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["install", file]:
            sys.exit(install(Path(file)))
        case [word] if word in ("hashes", "licences", "audit"):
            sys.exit({"hashes": hashes, "licences": licences, "audit": audit}[word]())
        case _:
            sys.exit(__doc__)
