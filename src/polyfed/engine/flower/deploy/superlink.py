"""Flower's SuperLink behind the guard: on loopback, and closed to everybody here who has no secret of ours."""

import hmac
import os
import sys
from collections.abc import Sequence
from typing import Any

import uvicorn
from flwr.common.constant import ACCESS_TOKEN_KEY, ISOLATION_MODE_PROCESS, NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
from flwr.supercore.auth.typing import AccountInfo
from flwr.superlink.auth_plugin import ControlAuthnPlugin

from polyfed.engine.flower.deploy.contract import SUPERLINK, piece, refuse_open
from polyfed.engine.flower.deploy.guard import CIPHERS, PASSED
from polyfed.engine.flower.deploy.layout import LOOPBACK, SECRET, TOKEN, Server
from polyfed.engine.flower.deploy.private import read_private

Metadata = Sequence[tuple[str, str | bytes]]
LOGIN = ("/v1/control/get-login-details", "/v1/control/get-auth-tokens", "/v1/control/refresh-auth-tokens")


class WithToken(ControlAuthnPlugin):
    """Whoever controls the SuperLink must bring the token; Flower's own plugin lets everybody in."""

    def __init__(self, token: bytes = b""):
        self.token = token

    def validate_tokens_in_metadata(self, metadata: Metadata) -> tuple[bool, AccountInfo | None]:
        """Whether the caller brought our token."""
        brought = str(dict(metadata).get(ACCESS_TOKEN_KEY, "")).encode()
        if not self.token or not hmac.compare_digest(brought, self.token):
            return False, None
        return True, AccountInfo(flwr_aid=NOOP_FLWR_AID, account_name=NOOP_ACCOUNT_NAME)

    def get_login_details(self) -> None:
        """Nobody logs in here."""

    def get_auth_tokens(self, device_code: str) -> None:
        """Nobody is given a token."""

    def refresh_tokens(self, metadata: Metadata) -> tuple[None, None]:
        """No token is exchanged for another."""
        return None, None


class Closed:
    """An ASGI app in front of Flower's: what nobody here needs (documentation, registration, login) does not answer."""

    def __init__(self, app: Any):
        self.app = app

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan" or (scope["type"] == "http" and needed(scope["raw_path"], scope["path"])):
            await self.app(scope, receive, send)
        else:
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})


def needed(raw: bytes, path: str) -> bool:
    """Whether a path is one that the guard, our SuperExec or the command line asks for; each brings its own proof."""
    if raw != path.encode() or "//" in path or ".." in path:
        return False
    if path.startswith("/v1/control/"):
        return path not in LOGIN
    return path.startswith("/v1/runtime/") or raw in PASSED


def arguments(server: Server) -> list[str]:
    """How Flower's SuperLink is to be started."""
    files = [f"--ssl-{what}file={server.path / name}" for what, name in _FILES]
    return [
        f"--host={LOOPBACK}",
        f"--port={server.link}",
        f"--database={server.path / 'superlink.db'}",
        *files,
        "--enable-supernode-auth",
        "--isolation=process",
        f"--superexec-auth-secret-file={server.path / SECRET}",
        "--disable-runtime-dependency-installation",
    ]


_FILES = (("cert", "server.crt"), ("key", "server.key"), ("ca-cert", "ca.crt"))


def make(server: Server) -> Any:
    """Flower's app with its doors closed; a release that would leave one open is refused."""
    read_private(server.path / SECRET)
    sys.argv = ["flower-superlink", *arguments(server)]
    config = piece(SUPERLINK, "_parse_superlink_lifespan_config")()
    plugin = WithToken(read_private(server.path / TOKEN))
    config.authn_plugin = plugin
    app = piece("flwr.superlink.main", "create_app")(config, piece(SUPERLINK, "SuperLinkLifespan"))
    shut = {
        "it listens on loopback": config.host == LOOPBACK and config.health_server_address is None,
        "control needs a token": app.state.account_access_dep.authn_plugin is plugin,
        "runtime needs a secret": config.isolation == ISOLATION_MODE_PROCESS and bool(app.state.superexec_auth_secret),
        "nodes are known by their keys": app.state.enable_supernode_auth is True,
        "it speaks TLS": bool(config.ssl_certfile and config.ssl_keyfile),
        "it has no second interface": not any(name.startswith("FLWR_INTERNAL_") for name in os.environ),
    }
    refuse_open("SuperLink", shut)
    return Closed(app)


def serve(server: Server) -> None:
    """The SuperLink in the foreground."""
    uvicorn.run(
        make(server),
        host=LOOPBACK,
        port=server.link,
        ws="none",
        proxy_headers=False,
        access_log=False,
        log_level="warning",
        ssl_certfile=str(server.path / "server.crt"),
        ssl_keyfile=str(server.path / "server.key"),
        ssl_ciphers=CIPHERS,
    )
