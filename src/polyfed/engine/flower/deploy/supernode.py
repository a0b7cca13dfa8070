"""Flower's SuperNode on a site: it runs only what was signed, and shows its certificate where one is wanted."""

import sys
from typing import Any

from flwr.common.constant import ISOLATION_MODE_PROCESS
from flwr.supercore.protobuf.client import ProtobufClient
from flwr.supernode import fleet_http_connection
from flwr.supernode.fleet_http_client import FleetHttpClient

from polyfed.engine.flower.deploy.contract import SUPERNODE, piece, refuse_open
from polyfed.engine.flower.deploy.keys import client_context
from polyfed.engine.flower.deploy.layout import LOOPBACK, SECRET, Site
from polyfed.engine.flower.deploy.private import read_private
from polyfed.engine.flower.deploy.signing import TRUSTED, trusted

PARSE = "_parse_supernode_lifespan_config"


def arguments(site: Site) -> list[str]:
    """How Flower's SuperNode is to be started."""
    return [
        f"--superlink={site.server}",
        f"--host={LOOPBACK}",
        f"--port={site.port}",
        f'--node-config=home="{site.path}"',
        f"--root-certificates={site.path / 'ca.crt'}",
        f"--auth-supernode-private-key={site.path / 'key'}",
        f"--trusted-entities={site.path / TRUSTED}",
        f"--ssl-certfile={site.certificate}",
        f"--ssl-keyfile={site.certificate.with_suffix('.key')}",
        f"--ssl-ca-certfile={site.path / 'ca.crt'}",
        "--isolation=process",
        f"--superexec-auth-secret-file={site.path / SECRET}",
    ]


def prepare(site: Site) -> Any:
    """What Flower's SuperNode starts from; a release that would leave a door open is refused."""
    for file in ("key", "site.key", SECRET):
        read_private(site.path / file)
    sys.argv = ["flower-supernode", *arguments(site)]
    config = piece(SUPERNODE, PARSE)()
    shut = {
        "only signed apps run": config.trusted_entities == trusted(site.path / TRUSTED),
        "runtime needs a secret": config.isolation == ISOLATION_MODE_PROCESS and bool(config.superexec_auth_secret),
        "it listens on loopback": config.host == LOOPBACK and config.health_server_address is None,
        "it speaks TLS": not config.insecure and config.root_certificates is not None,
        "its SuperExec can know it": bool(config.runtime_ssl_certfile and config.runtime_ssl_keyfile),
        "it signs with its key": config.authentication_keys is not None,
        "no package is installed": config.runtime_dependency_install is False,
        "its certificate is shown": not site.mutual or _shows(site),
    }
    refuse_open("SuperNode", shut)
    setattr(sys.modules[SUPERNODE], PARSE, lambda: config)  # what was checked is what starts
    return config


def _shows(site: Site) -> bool:
    """Put our HTTP client in the place of Flower's, which cannot show a certificate; whether that was possible."""
    if getattr(fleet_http_connection, "FleetHttpClient", None) is not FleetHttpClient:
        return False
    if not issubclass(FleetHttpClient, ProtobufClient):
        return False
    fleet_http_connection.FleetHttpClient = showing(site)  # type: ignore[misc]
    return True


def showing(site: Site) -> type[FleetHttpClient]:
    """Flower's HTTP client with this site's certificate."""

    class Showing(FleetHttpClient):
        def __init__(self, base_url: str, *, verify: Any, **more: Any):
            super().__init__(base_url, verify=client_context(site.path / "ca.crt", site.shown), **more)

    return Showing


def serve(site: Site) -> None:
    """The SuperNode in the foreground."""
    prepare(site)
    piece(SUPERNODE, "flower_supernode")()
