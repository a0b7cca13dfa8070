"""A federation on disk: one folder for the server, one for each site to be carried there, and the Flower app."""

import importlib.metadata
import ipaddress
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyfed.config import Tree, read_yaml, write_yaml
from polyfed.engine.deploy import texts
from polyfed.errors import DataError, UsageError

FIRST_CONFIG: Tree = {
    "method": {"name": "map"},
    "data": {"name": "folder", "root": "data"},
    "split": {"partition": "users", "test": 0.2},
    "model": {"name": "mlp"},
    "rounds": 10,
    "engine": {"name": "flower", "deadline": 600.0, "quorum": 0.5},
}
SITE_KEYS = ("name", "server", "port", "insecure", "data", "disclose")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")  # of a site, or of a run


@dataclass(frozen=True)
class Server:
    """The server's folder: who belongs to the federation, and where it listens."""

    path: Path
    sites: tuple[str, ...]  # sorted: a site's client id is its place here
    host: str
    port: int
    insecure: bool

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def runs(self) -> Path:
        return self.path / "runs"

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    def key_of(self, site: str) -> bytes:
        """The public key a site is known by."""
        from polyfed.engine.deploy import keys  # needs the extra: only who makes or reads keys pays for it

        return keys.public_key(self.path / "keys" / f"{site}.pub")

    @staticmethod
    def at(path: Path) -> "Server":
        """The server's folder at a path, or in the federation's folder there."""
        home = path / "server" if (path / "server" / "federation.yaml").is_file() else path
        tree = _settings(home / "federation.yaml", f"'{path}' is not a federation: make one with polyfed deploy init")
        return Server(home.resolve(), tuple(sorted(tree["sites"])), tree["host"], tree["port"], tree["insecure"])


@dataclass(frozen=True)
class Site:
    """A site's folder: its name, its key, its data, its memories and its model."""

    path: Path
    name: str
    server: str  # host:port
    port: int  # where its SuperNode listens on this machine
    insecure: bool
    data: Path
    disclose: str

    @property
    def memory(self) -> Path:
        return self.path / "memory"

    @property
    def model(self) -> Path:
        return self.path / "model"

    @staticmethod
    def at(path: Path, name: str | None = None) -> "Site":
        """The site's folder at a path, or the one of that name in the federation's folder there."""
        home = path / "sites" / name if name and (path / "sites" / name).is_dir() else path
        tree = _settings(home / "site.yaml", f"'{path}' is not a site" + (f" named '{name}'" if name else ""))
        if name is not None and tree["name"] != name:
            raise UsageError(f"the site at '{home}' is '{tree['name']}', not '{name}'")
        data = Path(tree["data"]).expanduser()
        home = home.resolve()
        values = (tree["name"], tree["server"], tree["port"], tree["insecure"], home / data, tree["disclose"])
        return Site(home, *values)


def _settings(path: Path, otherwise: str) -> Tree:
    if not path.is_file():
        raise DataError(otherwise)
    tree = read_yaml(path.read_text(encoding="utf-8"), str(path))
    wanted = ("sites", "host", "port", "insecure") if path.name == "federation.yaml" else SITE_KEYS
    missing = [key for key in wanted if not isinstance(tree, dict) or key not in tree]
    if missing:
        raise DataError(f"{path} has no '{missing[0]}'")
    return tree


def init(
    path: Path, sites: list[str], host: str, port: int, config: Tree, insecure: bool = False, disclose: str = "counts"
) -> None:
    """Write a ready federation."""
    from polyfed.engine.deploy import keys

    names = _checked(sites)
    if insecure and not is_loopback(host):
        raise UsageError(f"--insecure is for this machine alone (127.0.0.1 or localhost), not for '{host}'")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"'{path}' exists and is not empty; give another folder")
    server = path / "server"
    for folder in (server / "keys", server / "app" / "polyfed_app", server / "flower", server / "runs"):
        folder.mkdir(parents=True)
    (path / "ca").mkdir(mode=0o700)
    if not insecure:
        keys.make_authority(path / "ca")
        keys.make_server_certificate(path / "ca", server, host)
        (server / "ca.crt").write_bytes((path / "ca" / "ca.crt").read_bytes())
    for at, name in enumerate(names):
        _write_site(path, name, f"{host}:{port}", port + 1 + at, insecure, disclose)
    settings = {"sites": names, "host": host, "port": port, "insecure": insecure}
    (server / "federation.yaml").write_text(write_yaml(settings))
    (server / "config.yaml").write_text(texts.CONFIG_HEAD + write_yaml(config))
    _write_app(server)
    _script(server / "start.sh", texts.START_SERVER)
    (path / "README.md").write_text(texts.README.format(path=path, server=f"{host}:{port}", first=names[0]))


def _checked(sites: list[str]) -> list[str]:
    strange = [name for name in sites if not NAME.fullmatch(name)]
    if strange:
        raise UsageError(f"a site's name is letters, digits, - and _, not {strange[0]!r}")
    if len(set(sites)) != len(sites) or len(sites) < 2:
        raise UsageError("a federation needs at least two sites with different names, for example --sites a,b,c")
    return sorted(sites)


def _write_site(path: Path, name: str, server: str, port: int, insecure: bool, disclose: str) -> None:
    from polyfed.engine.deploy import keys

    home = path / "sites" / name
    (home / "data").mkdir(parents=True)
    home.chmod(0o700)
    if not insecure:
        keys.make_site_key(home)
        (path / "server" / "keys" / f"{name}.pub").write_bytes((home / "key.pub").read_bytes())
        (home / "ca.crt").write_bytes((path / "ca" / "ca.crt").read_bytes())
    settings: dict[str, Any] = {"name": name, "server": server, "port": port, "insecure": insecure}
    settings |= {"data": "data", "disclose": disclose}
    (home / "site.yaml").write_text(texts.SITE_HEAD + write_yaml(settings))
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


def is_loopback(host: str) -> bool:
    """Whether a host is this machine and reached by nobody else."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def around(home: Path) -> dict[str, str]:
    """The environment of a process of Flower's: its files here, no telemetry, one thread, our programs first."""
    from polyfed.engine.flower import SILENT

    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, **SILENT, **threads, "FLWR_HOME": str(home / "flower"), "PATH": programs}


__all__ = ["Server", "Site", "around", "init", "is_loopback"]
