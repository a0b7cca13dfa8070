"""A federation on disk: one folder for the server, one for each site to be carried there, and the Flower app."""

import importlib.metadata
import ipaddress
import os
import re
import sys
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyfed.config import Tree, write_yaml
from polyfed.engine.flower.deploy import texts
from polyfed.engine.flower.deploy.settings import LAST_PORT, FederationFile, LeastPrivacy, SiteFile, read_settings
from polyfed.errors import DataError, UsageError

FIRST_CONFIG: Tree = {
    "method": {"name": "map"},
    "data": {"name": "folder", "root": "data"},
    "split": {"partition": "users", "test": 0.2},
    "model": {"name": "mlp"},
    "rounds": 10,
    "engine": {"name": "flower", "deadline": 600.0, "quorum": 0.5},
}
DISCLOSE = ("n", "counts")  # what a site may tell of its data: n alone, or the samples of each class too
RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")  # the name of a run
LONGEST = 40  # letters of a site's name, so that a file may have it
LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")  # between the dots of a host's name
LOOPBACK, ANYWHERE = "127.0.0.1", "0.0.0.0"
TOKEN = "control.token"  # who has it may submit apps to the SuperLink
SECRET = "superexec.secret"  # who has it may fetch tasks from a SuperLink or SuperNode


@dataclass(frozen=True)
class Server:
    """The server's folder: who belongs to the federation, and where it listens."""

    path: Path
    sites: tuple[str, ...]  # sorted: a site's client id is its place here
    host: str
    port: int  # of the guard
    link: int  # of the SuperLink, on loopback
    mutual: bool

    @property
    def address(self) -> str:
        return at_port(self.host, self.port)

    @property
    def runs(self) -> Path:
        return self.path / "runs"

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    def key_of(self, site: str) -> bytes:
        """The public key a site is known by."""
        from polyfed.engine.flower.deploy import keys  # needs the extra: only who makes or reads keys pays for it

        return keys.public_key(self.path / "keys" / f"{site}.pub")

    @staticmethod
    def at(path: Path) -> "Server":
        """The server's folder at a path, or in the federation's folder there."""
        home = path / "server" if (path / "server" / "federation.yaml").is_file() else path
        otherwise = f"'{path}' is not a federation: make one with polyfed deploy init"
        file = read_settings(FederationFile, home / "federation.yaml", otherwise)
        if file.link == file.port:
            raise DataError(f"{home / 'federation.yaml'}: the guard and the SuperLink need different ports")
        names = tuple(checked_names(file.sites))
        return Server(home.resolve(), names, checked_host(file.host), file.port, file.link, file.mutual)


@dataclass(frozen=True)
class Site:
    """A site's folder: its name, its key, its data, its memories and its model."""

    path: Path
    name: str
    server_host: str  # where the guard is
    server_port: int
    port: int  # where its SuperNode listens on this machine
    data: Path
    disclose: str
    mutual: bool
    allow: tuple[str, ...]
    privacy: LeastPrivacy | None = None

    @property
    def server(self) -> str:
        return at_port(self.server_host, self.server_port)

    @property
    def memory(self) -> Path:
        return self.path / "memory"

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def certificate(self) -> Path:
        """What its own SuperExec, and with mutual TLS the guard, knows this site by."""
        return self.path / "site.crt"

    @property
    def shown(self) -> Path | None:
        """What is shown to the guard, if anything."""
        return self.certificate if self.mutual else None

    @staticmethod
    def at(path: Path, name: str | None = None) -> "Site":
        """The site's folder at a path, or the one of that name in the federation's folder there."""
        name = None if name is None else normal(name)
        home = path / "sites" / name if name and (path / "sites" / name).is_dir() else path
        otherwise = f"'{path}' is not a site" + (f" named '{name}'" if name else "")
        file = read_settings(SiteFile, home / "site.yaml", otherwise)
        if name is not None and normal(file.name) != name:
            raise UsageError(f"the site at '{home}' is '{file.name}', not '{name}'")
        host, port = _host_and_port(file.server, home / "site.yaml")
        check_disclose(file.disclose, f"{home / 'site.yaml'}: disclose")
        home = home.resolve()
        data = home / Path(file.data).expanduser()
        told = (data, file.disclose, file.mutual, tuple(file.allow), file.privacy)
        return Site(home, normal(file.name), host, port, file.port, *told)


def check_disclose(value: Any, where: str) -> None:
    """Refuse an unknown value of `disclose`: it might be meant to disclose less than polyfed would understand."""
    if value not in DISCLOSE:
        raise UsageError(f"{where} is n or counts, not {value!r}")


def _host_and_port(address: str, path: Path) -> tuple[str, int]:
    """Split `host:port`; an IPv6 address stands in brackets."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or not 1 <= int(port) <= LAST_PORT:
        raise DataError(f"{path}: the server's address is host:port, not '{address}'")
    return checked_host(host.removeprefix("[").removesuffix("]")), int(port)


def at_port(host: str, port: int) -> str:
    """Write `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def checked_host(host: str) -> str:
    """Return a host's name or address if it is a valid one; otherwise raise an error."""
    if _ip(host) is None and (len(host) > 253 or not all(LABEL.fullmatch(part) for part in host.split("."))):
        raise UsageError(f"a host is a name such as fl.example.org or an address, not '{host[:60]}'")
    return host


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Whether a host is this machine and reached by nobody else."""
    address = _ip(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def bind_address(server: Server) -> str:
    """Where the guard listens: everywhere, unless the federation is on this machine alone."""
    if not is_loopback(server.host):
        return ANYWHERE
    return LOOPBACK if server.host == "localhost" else server.host


def init(
    path: Path, sites: list[str], host: str, port: int, config: Tree, mutual: bool = False, disclose: str = "counts"
) -> None:
    """Write a ready federation."""
    from polyfed.engine.flower.deploy import keys, private, signing

    names = checked_names(sites)
    checked_host(host)
    if not 1 <= port <= LAST_PORT - 1 - len(names):
        raise UsageError(f"--port is the first of {2 + len(names)} ports between 1 and {LAST_PORT}, not {port}")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"'{path}' exists and is not empty; give another folder")
    server, authority = path / "server", path / "ca"
    for folder in (server / "keys", server / "app" / "polyfed_app", server / "flower", server / "runs"):
        folder.mkdir(parents=True)
    server.chmod(0o700)
    authority.mkdir(mode=0o700)
    keys.make_authority(authority)
    keys.make_signing_key(authority)
    keys.make_server_certificate(authority, server, host)
    for file in ("ca.crt", "sign.pub"):
        (server / file).write_bytes((authority / file).read_bytes())
    for file in (TOKEN, SECRET):
        private.make_secret(server / file)
    for at, name in enumerate(names):
        about = {"name": name, "server": at_port(host, port), "port": port + 2 + at, "data": "data"}
        _write_site(path, {**about, "disclose": disclose, "mutual": mutual, "allow": []})
    settings = {"sites": names, "host": host, "port": port, "link": port + 1, "mutual": mutual}
    (server / "federation.yaml").write_text(write_yaml(settings), encoding="utf-8")
    (server / "config.yaml").write_text(texts.CONFIG_HEAD + write_yaml(config))
    _write_app(server)
    signing.sign(server, authority)
    _script(server / "start.sh", texts.START_SERVER)
    readme = texts.README.format(path=path, server=at_port(host, port), first=names[0])
    (path / "README.md").write_text(readme, encoding="utf-8")


def checked_names(sites: list[str]) -> list[str]:
    """Names that sites can have, sorted; two that differ in capitals alone would be one folder on some machines."""
    names = [normal(name) for name in sites]
    strange = [name for name in names if not _is_name(name)]
    if strange:
        allowed = f"at most {LONGEST} letters of any script, digits, - and _, and begins with a letter or digit"
        raise UsageError(f"a site's name is {allowed}; {strange[0][:60]!r} is none")
    if len({name.casefold() for name in names}) != len(names) or len(names) < 2:
        raise UsageError("a federation needs at least two sites with different names, for example --sites a,b,c")
    return sorted(names)


def normal(name: str) -> str:
    """A name in the one way of writing it: ü is one letter, never u with a mark upon it."""
    return unicodedata.normalize("NFC", name)


def _is_name(name: str) -> bool:
    """Letters and digits of any script, with the marks that belong to them, and - and _ between them."""
    kinds = [unicodedata.category(letter)[0] for letter in name]
    return (
        0 < len(name) <= LONGEST
        and kinds[0] in "LN"
        and all(kind in "LMN" or letter in "-_" for kind, letter in zip(kinds, name, strict=True))
    )


def _write_site(path: Path, settings: Tree) -> None:
    from polyfed.engine.flower.deploy import keys, private, signing

    name, authority = settings["name"], path / "ca"
    home = path / "sites" / name
    (home / "data").mkdir(parents=True)
    home.chmod(0o700)
    keys.make_site_key(home)
    (path / "server" / "keys" / f"{name}.pub").write_bytes((home / "key.pub").read_bytes())
    (home / "ca.crt").write_bytes((authority / "ca.crt").read_bytes())
    signing.trust(authority, home)
    private.make_secret(home / SECRET)
    keys.make_site_certificate(authority, home, name)
    (home / "site.yaml").write_text(texts.SITE_HEAD + write_yaml(settings), encoding="utf-8")
    _script(home / "start.sh", texts.START_SITE)


def _write_app(server: Path) -> None:
    app = server / "app"
    version = importlib.metadata.version("polyfed")
    (app / "pyproject.toml").write_text(texts.PYPROJECT.format(version=version))
    (app / "polyfed_app" / "__init__.py").write_text('"""The federation as a Flower app: polyfed does the work."""\n')
    (app / "polyfed_app" / "server_app.py").write_text(texts.SERVER_APP)
    (app / "polyfed_app" / "client_app.py").write_text(texts.CLIENT_APP)


def _script(path: Path, text: str) -> None:
    path.write_text(text.replace("@BIN@", str(Path(sys.executable).parent)))
    path.chmod(0o755)


def flower_environment(home: Path) -> dict[str, str]:
    """The environment of a Flower process: files below `home`, no telemetry, one thread, our programs first."""
    from polyfed.engine.flower import SILENT

    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    # variables of Flower's own could change what it does
    plain = {name: value for name, value in os.environ.items() if not name.startswith("FLWR_")}
    return {**plain, **SILENT, **threads, "FLWR_HOME": str(home / "flower"), "PATH": programs}
