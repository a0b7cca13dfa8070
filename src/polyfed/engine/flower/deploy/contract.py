"""What we replace, wrap or build on in Flower beyond its public API. A release that moved a piece is never started."""

import importlib
from importlib import metadata
from typing import Any

from polyfed.errors import RunFailed

SUPERLINK = "flwr.superlink.cli.flower_superlink"
SUPERNODE = "flwr.supernode.cli.flower_supernode"
PIECES = (
    (SUPERLINK, "_parse_superlink_lifespan_config", "how the SuperLink is configured"),
    (SUPERLINK, "SuperLinkLifespan", "what the SuperLink keeps while it runs"),
    ("flwr.superlink.main", "create_app", "the SuperLink's app"),
    ("flwr.superlink.auth_plugin", "ControlAuthnPlugin", "who may control the SuperLink"),
    (SUPERNODE, "_parse_supernode_lifespan_config", "how the SuperNode is configured"),
    (SUPERNODE, "flower_supernode", "the SuperNode"),
    ("flwr.supernode.fleet_http_connection", "FleetHttpClient", "how a site shows its certificate"),
    ("flwr.supernode.start_client_internal", "_verify_fab", "how a site looks at the app's signature"),
    ("flwr.cli.build", "build_fab_from_disk", "how the app is packed and signed"),
    ("flwr.supercore.primitives.asymmetric_ed25519", "create_message_to_sign", "what is signed"),
)


def piece(module: str, name: str) -> Any:
    """A piece of Flower's."""
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        missing = f"Flower {metadata.version('flwr')} has no {module}.{name}"
        raise RunFailed(f"{missing}, on which polyfed's protection is built: not started") from None


def check_pieces() -> None:
    """Every piece is where it was."""
    for module, name, _ in PIECES:
        piece(module, name)


def refuse_open(program: str, shut: dict[str, bool]) -> None:
    """Refuse to start Flower's program unless everything holds that keeps it closed."""
    for what, holds in shut.items():
        if not holds:
            raise RunFailed(f"Flower's {program} would start open ({what} cannot be made sure): not started")
