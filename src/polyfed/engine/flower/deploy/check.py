"""Checks of a federation's folder before anything starts, and of a running server: whether strangers are kept out."""

from pathlib import Path

import numpy as np

from polyfed.config import make_config, read_config
from polyfed.data.sources.base import Dataset
from polyfed.data.sources.folder import Folder
from polyfed.data.sources.found import SizesDiffer
from polyfed.data.sources.tables import Unclear
from polyfed.engine.flower.deploy import contract, keys, probes, processes, signing
from polyfed.engine.flower.deploy.layout import SECRET, TOKEN, Server, Site, normal
from polyfed.engine.flower.deploy.private import read_private
from polyfed.errors import DataError


def check(path: Path, site: str | None = None) -> list[str]:
    """What was found to be in order, line by line; the first fault is an error."""
    if site is not None or (path / "site.yaml").is_file():
        return check_site(Site.at(path, site))
    server = Server.at(path)
    found = check_server(server)
    if processes.listens(server):
        found += probes.prove_closed(server)
    _check_authority(server.path.parent / "ca")
    here = server.path.parent / "sites"
    strangers = [normal(folder.name) for folder in here.glob("*") if (folder / "site.yaml").is_file()]
    unknown = sorted(set(strangers) - set(server.sites))
    if unknown:
        raise DataError(f"the site '{unknown[0]}' in {here} is unknown to the server: federation.yaml does not name it")
    for name in server.sites:
        if (here / name / "site.yaml").is_file():
            member = Site.at(here / name, name)
            _check_same_federation(server, member)
            found += check_site(member, with_data=False)
    return found


def check_server(server: Server) -> list[str]:
    """Certificate, keys, secrets, the signature of the app, the config."""
    contract.check_pieces()
    make_config(read_config(server.config) | {"engine": {"name": "flower"}})
    keys.check_certificate(server.path / "server.crt", server.path / "ca.crt", server.host)
    keys.check_key_pair(server.path / "server.key", server.path / "server.crt")
    for file in (TOKEN, SECRET):
        read_private(server.path / file)
    known = {server.key_of(name): name for name in server.sites}
    if len(known) < len(server.sites):
        raise DataError("two sites have the same key; every site needs its own")
    signing.check_app(server.path)
    until = keys.read_certificate(server.path / "server.crt").not_valid_after_utc
    about = f"certificate valid until {until:%Y-%m-%d}, {len(known)} sites' keys, the app is signed"
    return [f"server: {server.address}, {about}"]


def check_site(site: Site, with_data: bool = True) -> list[str]:
    """CA, key, secret, whom it trusts, the server's answer, the data."""
    contract.check_pieces()
    keys.check_certificate(site.path / "ca.crt", site.path / "ca.crt")
    private = site.path / "key"
    if keys.public_key_of(private) != keys.public_key(site.path / "key.pub"):
        raise DataError(f"the key {private} does not belong to {site.path / 'key.pub'}")
    read_private(site.path / SECRET)
    signing.trusted(site.path / signing.TRUSTED)
    keys.check_certificate(site.certificate, site.path / "ca.crt", keys.LOCAL)
    keys.check_key_pair(site.certificate.with_suffix(".key"), site.certificate)
    strange = [name for name in site.allow if ":" not in name]
    if strange:
        raise DataError(f"{site.path / 'site.yaml'}: allow names module:Class, not '{strange[0]}'")
    found = [f"site {site.name}: joins {site.server} with its key, runs only the signed app"]
    found += probes.prove_site(site)
    found += probes.prove_node(site)
    if with_data:
        found.append(f"site {site.name}: {_told_of_data(site)}")
    return found


def _told_of_data(site: Site) -> str:
    """How many samples of which kind there are, as far as that can be told without the config."""
    try:
        data, shape = _data_of(site)
    except Unclear as why:
        keys = "data.label, data.categories, data.missing or data.name=text"
        return f"{why} (the config may say how this is read: {keys}; the samples were not looked at)"
    return f"{len(data.y)} samples of {data.x.dtype} {shape}, {_classes_of(data)}"


def _data_of(site: Site) -> tuple[Dataset, str]:
    """What a site's folder holds, and its shape; images of several sizes need a key of the config, unknown here."""
    texts = sorted(site.data.glob("*.jsonl"))
    if texts:
        raise Unclear(f"{texts[0]} holds texts")
    try:
        data = Folder(root=site.data).of_one(site.data)
    except SizesDiffer:
        return Folder(root=site.data, size=1).of_one(site.data), "in several sizes (the config must have data.size)"
    return data, "x".join(map(str, data.x.shape[1:]))


def _check_authority(folder: Path) -> None:
    """The CA's keys are better kept elsewhere; where they are here, only their owner may read them."""
    for file in ("ca.key", "sign.key"):
        if (folder / file).exists():
            read_private(folder / file)


def _classes_of(data: Dataset) -> str:
    """How many classes a site has samples of; it may lack some, whose labels others use."""
    labels, last = np.unique(data.y), len(data.class_names) - 1
    own = int((labels <= last).sum())  # pixels without a label are of no class
    missing = f" (labels up to {last}: data.classes says how many all sites have together)"
    return f"{own} classes" + (missing if own <= last else "")


def _check_same_federation(server: Server, site: Site) -> None:
    """A site's folder has the server's CA and trusts its signing key, and the server knows its key."""
    if keys.public_key(site.path / "key.pub") != server.key_of(site.name):
        raise DataError(f"the server knows another key of site '{site.name}' than {site.path / 'key.pub'}")
    ours, theirs = (keys.read_certificate(folder / "ca.crt") for folder in (server.path, site.path))
    if ours != theirs:
        raise DataError(f"{site.path / 'ca.crt'} is another federation's: it is not the CA of {server.path}")
    signer = (server.path / "sign.pub").read_text().split()
    if all(text.split() != signer for text in signing.trusted(site.path / signing.TRUSTED).values()):
        raise DataError(f"{site.path / signing.TRUSTED} is another federation's: it names another key than sign.pub")
