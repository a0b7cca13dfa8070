"""What is wrong with a federation's folder, said before anything starts."""

from pathlib import Path

from polyfed.config import make_config, read_config
from polyfed.data.sources.folder import Folder
from polyfed.engine.deploy import keys
from polyfed.engine.deploy.layout import Server, Site, is_loopback
from polyfed.errors import DataError, UsageError


def check(path: Path, site: str | None = None) -> list[str]:
    """What was found to be in order, line by line; the first fault is an error."""
    if site is not None or (path / "site.yaml").is_file():
        return check_site(Site.at(path, site))
    server = Server.at(path)
    found = check_server(server)
    here = server.path.parent / "sites"
    for name in server.sites:
        if (here / name / "site.yaml").is_file():
            found += check_site(Site.at(here / name), with_data=False)
    return found


def check_server(server: Server) -> list[str]:
    """Certificate, key, the sites' public keys, the config."""
    make_config(read_config(server.config) | {"engine": {"name": "flower"}})
    if server.insecure:
        if not is_loopback(server.host):
            raise UsageError(f"without TLS a federation may only be on this machine, not on '{server.host}'")
        return [f"server: {server.address}, without TLS, on this machine only"]
    keys.check_certificate(server.path / "server.crt", server.path / "ca.crt", server.host)
    keys.check_key_pair(server.path / "server.key", server.path / "server.crt")
    known = {server.key_of(name): name for name in server.sites}
    if len(known) < len(server.sites):
        raise DataError("two sites have the same key; every site needs its own")
    until = keys.read_certificate(server.path / "server.crt").not_valid_after_utc
    return [f"server: {server.address}, certificate valid until {until:%Y-%m-%d}, {len(known)} sites' keys"]


def check_site(site: Site, with_data: bool = True) -> list[str]:
    """CA, key, the server's answer, the data."""
    host, _, port = site.server.rpartition(":")
    if site.insecure:
        if not is_loopback(host):
            raise UsageError(f"without TLS a site may only join a server on this machine, not '{host}'")
    else:
        keys.check_certificate(site.path / "ca.crt", site.path / "ca.crt")
        _check_private(site)
        refusal = keys.answer_of(host, int(port), site.path / "ca.crt")
        if refusal:
            raise DataError(f"site '{site.name}': {refusal}")
    found = [f"site {site.name}: joins {site.server}" + (", without TLS" if site.insecure else " with its key")]
    if with_data:
        data = Folder(root=site.data).of_one(site.data)
        shape = "x".join(map(str, data.x.shape[1:]))
        found.append(f"site {site.name}: {len(data.y)} samples of {data.x.dtype} {shape}, {data.classes} classes")
    return found


def _check_private(site: Site) -> None:
    private = site.path / "key"
    if keys.public_key_of(private) != keys.public_key(site.path / "key.pub"):
        raise DataError(f"the key {private} does not belong to {site.path / 'key.pub'}")
    if private.stat().st_mode & 0o077:
        raise DataError(f"others on this machine may read the private key {private}: chmod 600 it")
