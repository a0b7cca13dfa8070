"""A running federation as a stranger sees it: every door that must be shut is tried."""

import base64
import datetime
import http.client
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from polyfed.engine.flower.deploy import keys
from polyfed.engine.flower.deploy.layout import LOOPBACK, TOKEN, Server, Site, at_port, bind_address
from polyfed.engine.flower.deploy.private import read_private
from polyfed.errors import DataError

SECONDS = 10.0  # how long one answer may take
ASKED = "/v1/fleet/get-run"  # a call that changes nothing
CONTROL, RUNTIME, REGISTER = "/v1/control/list-runs", "/v1/runtime/acquire-task", "/v1/fleet/register-node"
NEVER = (
    ("POST", CONTROL),
    ("POST", "/v1/control/start-run"),
    ("POST", RUNTIME),
    ("POST", REGISTER),
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
    ("GET", ASKED),
    ("POST", "/v1/fleet/../control/list-runs"),
    ("POST", "/v1/fleet/%2e%2e/control/list-runs"),
    ("POST", "/v1%2ffleet/get-run"),
    ("POST", "//v1/fleet/get-run"),
    ("POST", f"{ASKED}?a=b"),
    ("POST", f"http://{LOOPBACK}{ASKED}"),
)


@dataclass(frozen=True)
class Door:
    """Somewhere to knock at."""

    host: str
    port: int
    context: ssl.SSLContext | None  # None: without TLS
    source: str | None = None  # the address to come from

    def ask(self, method: str, target: str, headers: Mapping[str, str] | None = None) -> int:
        """The status of the answer; where there is no answer, an OSError is raised."""
        origin = None if self.source is None else (self.source, 0)
        common: dict[str, Any] = {"timeout": SECONDS, "source_address": origin}
        if self.context is None:
            connection = http.client.HTTPConnection(self.host, self.port, **common)
        else:
            connection = http.client.HTTPSConnection(self.host, self.port, context=self.context, **common)
        try:
            connection.putrequest(method, target, skip_accept_encoding=True)
            said = {"content-type": "application/protobuf", "content-length": "0", **(headers or {})}
            for name, value in said.items():
                connection.putheader(name, value)
            connection.endheaders()
            return connection.getresponse().status
        except http.client.HTTPException as error:
            raise ConnectionResetError(type(error).__name__) from None
        finally:
            connection.close()

    def must_refuse(self, method: str, target: str, headers: Mapping[str, str] | None = None) -> None:
        """Ask, and raise an error unless the answer is a refusal."""
        try:
            status = self.ask(method, target, headers)
        except OSError as error:
            raise DataError(
                f"{at_port(self.host, self.port)} does not answer a {method} of {target}: {error}"
            ) from None
        if status not in (401, 403):
            where = at_port(self.host, self.port)
            raise DataError(f"{where} answers {status} to a {method} of {target}, which it must refuse: stop it")


def signed(private: ec.EllipticCurvePrivateKey, public: bytes, age: float = 0) -> dict[str, str]:
    """The headers by which a SuperNode shows whose it is."""
    then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age)
    proof = private.sign(then.isoformat().encode(), ec.ECDSA(hashes.SHA256()))
    return {
        "flwr-public-key": base64.b64encode(public).decode(),
        "flwr-timestamp": then.isoformat(),
        "flwr-signature": base64.b64encode(proof).decode(),
    }


def strangers_headers() -> dict[str, str]:
    """Headers with a valid signature, by a key that is not registered."""
    key = ec.generate_private_key(keys.CURVE)
    return signed(key, keys.pem_of(key.public_key()))


def prove_closed(server: Server) -> list[str]:
    """On the server's machine: guard and SuperLink refuse all they must; the first open door is an error."""
    authority = server.path / "ca.crt"
    shown = keys.client_context(authority, server.path / "server.crt")  # of the CA, and no site's
    host = LOOPBACK if bind_address(server) != server.host else server.host
    guard = Door(host, server.port, shown)
    prove_guard(guard)
    if server.mutual:
        prove_certificate_wanted(Door(host, server.port, keys.client_context(authority)))
    link = Door(LOOPBACK, server.link, keys.client_context(authority))
    for method, target in (("POST", CONTROL), ("POST", RUNTIME), ("POST", REGISTER), ("GET", "/docs"), ("POST", ASKED)):
        link.must_refuse(method, target)
    token = read_private(server.path / TOKEN).decode()
    if link.ask("POST", CONTROL, {"authorization": f"Bearer {token}"}) != 200:
        raise DataError(f"the SuperLink on port {server.link} does not take the token in {server.path / TOKEN}")
    _prove_loopback_only(server)
    return [f"server: tried from outside, {len(NEVER) + 2} ways into the guard and 5 into the SuperLink are shut"]


def prove_guard(guard: Door) -> None:
    """Check that the guard refuses what nobody may ask, and to strangers also what sites may ask."""
    for method, target in NEVER:
        guard.must_refuse(method, target)
    guard.must_refuse("POST", ASKED)
    guard.must_refuse("POST", ASKED, strangers_headers())


def prove_certificate_wanted(door: Door) -> None:
    """Without a site's certificate there is no answer at all."""
    try:
        status = door.ask("POST", ASKED)
    except OSError:
        return
    where = at_port(door.host, door.port)
    raise DataError(f"the guard at {where} answers {status} to a caller without a certificate: mutual TLS is not on")


def _prove_loopback_only(server: Server) -> None:
    """The SuperLink's port does not answer at the server's public address."""
    if server.host in (LOOPBACK, "localhost"):
        return
    try:
        Door(server.host, server.link, keys.client_context(server.path / "ca.crt")).ask("GET", "/docs")
    except OSError as error:
        if not isinstance(error, ssl.SSLError):
            return
    raise DataError(f"the SuperLink answers at {at_port(server.host, server.link)}, not on loopback alone: stop it")


def prove_site(site: Site) -> list[str]:
    """The guard takes this site's fresh signature and no old one; nothing is said of a server that is not there yet."""
    guard = Door(site.server_host, site.server_port, keys.client_context(site.path / "ca.crt", site.shown))
    private = keys.private_key(site.path / "key", "ssh")
    public = keys.pem_of(private.public_key())
    try:
        fresh = guard.ask("POST", ASKED, signed(private, public))
    except ssl.SSLCertVerificationError as error:
        who = f"the server at {site.server} is not the one {site.path / 'ca.crt'} vouches for"
        raise DataError(f"site '{site.name}': {who}: {error.verify_message}") from None
    except (ssl.SSLError, ConnectionResetError) as error:
        reason = getattr(error, "reason", None) or str(error)
        raise DataError(f"site '{site.name}': the server at {site.server} refuses the connection: {reason}") from None
    except OSError:
        return []  # not there yet: that is no fault of this site's
    if fresh == 403:
        who = f"site '{site.name}': its key is not registered there, or its clock is wrong"
        raise DataError(f"the server at {site.server} refuses {who}")
    prove_guard(guard)
    guard.must_refuse("POST", ASKED, signed(private, public, age=3600))
    return [f"site {site.name}: the guard at {site.server} knows its key, and refuses strangers and old signatures"]


def prove_node(site: Site) -> list[str]:
    """The SuperNode on this machine, if it runs, gives tasks to nobody without the secret."""
    node = Door(keys.LOCAL, site.port, keys.client_context(site.path / "ca.crt"))
    try:
        node.ask("POST", RUNTIME)
    except OSError:
        return []
    node.must_refuse("POST", RUNTIME)
    return [f"site {site.name}: its SuperNode gives tasks only to its own SuperExec"]


__all__ = ["Door", "prove_closed", "prove_node", "prove_site", "signed", "strangers_headers"]
