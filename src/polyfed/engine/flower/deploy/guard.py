"""The guard: the one door of a federation. It passes on what a registered site may ask for, and nothing else."""

import asyncio
import base64
import binascii
import datetime
import resource
import ssl
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
import uvicorn
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from polyfed.engine.flower.deploy.keys import client_context
from polyfed.engine.flower.deploy.layout import LOOPBACK, Server, bind_address
from polyfed.engine.flower.deploy.limits import PER_ADDRESS, PER_SITE, Allowance, Bounded
from polyfed.engine.flower.deploy.signing import SIGNATURE, Signature

CALLS = (
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "get-run",
    "get-fab",
    "push-object",
    "pull-object",
    "confirm-message-received",
)
PASSED = {f"/v1/fleet/{call}".encode(): call for call in CALLS}
KEY, SIGNED, TIME = b"flwr-public-key", b"flwr-signature", b"flwr-timestamp"  # the headers a SuperNode signs with
OLD, AHEAD = 60.0, 5.0  # seconds a signature may be old, and a site's clock ahead
BODY = 32 * 2**20  # bytes of a request; Flower cuts what is larger than 5 MiB
BY_KEY, BY_ADDRESS = (100.0, 500.0), (400.0, 2000.0)  # requests a second and in a burst
ANSWER, HANDSHAKE = 60.0, 10.0  # seconds that the SuperLink may take to answer, and a TLS handshake to finish
FILES = 8192  # how many files may be open at a time, where the system allows it
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]


class Refused(Exception):
    """Why a request goes no further, with its status."""

    def __init__(self, why: str, status: int = 403):
        super().__init__(why)
        self.status = status


@dataclass(frozen=True)
class Reply:
    """What the SuperLink answered."""

    status: int
    headers: Headers
    body: bytes


Link = Callable[[str, Headers, bytes], Awaitable[Reply]]  # (call, headers, body)


class Guard:
    """An ASGI app in front of a SuperLink."""

    def __init__(self, sites: Mapping[bytes, str], signature: Signature, link: Link, mutual: bool = False):
        self.sites, self.signature, self.link, self.mutual = dict(sites), signature, link, mutual
        self.keys = {key: _public(key) for key in self.sites}
        self.by_key, self.by_address, self.lines = Allowance(*BY_KEY), Allowance(*BY_ADDRESS), Allowance(1, 20)

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            call = self.admit(scope)
            body = await _body(scope, receive)
            reply = await self.link(call, [pair for pair in scope["headers"] if _goes_on(pair[0])], body)
            if call == "get-fab" and reply.status == 200:
                reply = Reply(reply.status, reply.headers, self.signature.put_into(reply.body))
        except Refused as refused:
            self._tell(scope, refused)
            reply = Reply(refused.status, [(b"content-type", b"text/plain")], str(refused).encode())
        await _answer(send, reply)

    def admit(self, scope: Mapping[str, Any]) -> str:
        """The call a request may make; what is refused is refused before its body is read."""
        if not self.by_address.take((scope.get("client") or ("",))[0]):
            raise Refused("too many requests from this address", 503)
        call = PASSED.get(scope.get("raw_path") or b"")
        if call is None or scope["method"] != "POST" or scope["query_string"]:
            raise Refused("this is not for sites to ask")
        key = self.signer(scope["headers"])
        if self.mutual and scope.get("certificate") != self.sites[key]:
            raise Refused("the certificate is not that of the site whose key signed")
        if not self.by_key.take(key):
            raise Refused("too many requests of this site", 503)
        return call

    def signer(self, headers: Headers) -> bytes:
        """Whose key signed the request just now."""
        try:
            key, signature, time = (_single(headers, name) for name in (KEY, SIGNED, TIME))
            known = base64.b64decode(key, validate=True)
            age = _seconds_since(time.decode("ascii"))
            proof = base64.b64decode(signature, validate=True)
            self.keys[known].verify(proof, time, ec.ECDSA(hashes.SHA256()))
        except KeyError:
            raise Refused("the key is not registered") from None
        except (ValueError, TypeError, OverflowError, binascii.Error, InvalidSignature):
            raise Refused("the request is not signed as a SuperNode signs") from None
        if not -AHEAD < age < OLD:
            raise Refused(f"the request was signed {age:.0f} s ago, which is too long: is the clock right?")
        return known

    def _tell(self, scope: Mapping[str, Any], refused: Refused) -> None:
        if self.lines.take("log"):
            what = f"{scope['method'][:10]} {bytes(scope.get('raw_path') or b'')[:80]!r}"
            sys.stderr.write(f"guard: {(scope.get('client') or ('?',))[0]}: {what}: {refused}\n")


def _public(key: bytes) -> ec.EllipticCurvePublicKey:
    found = serialization.load_pem_public_key(key)
    assert isinstance(found, ec.EllipticCurvePublicKey)
    return found


def _single(headers: Headers, name: bytes) -> bytes:
    found = [value for key, value in headers if key.lower() == name]
    if len(found) != 1:
        raise ValueError(name)
    return found[0]


def _seconds_since(text: str) -> float:
    then = datetime.datetime.fromisoformat(text)
    return (datetime.datetime.now(datetime.UTC) - then).total_seconds()


def _goes_on(header: bytes) -> bool:
    return header.lower().startswith(b"flwr-") or header.lower() in (b"content-type", b"accept")


async def _body(scope: Mapping[str, Any], receive: Receive) -> bytes:
    """The whole body, up to the limit."""
    said = [value for key, value in scope["headers"] if key.lower() == b"content-length"]
    if said and (not said[0].isdigit() or len(said[0]) > 12 or int(said[0]) > BODY):
        raise Refused("the request is too large", 413)
    body = bytearray()
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise Refused("the connection broke off", 400)
        body += event.get("body", b"")
        if len(body) > BODY:
            raise Refused("the request is too large", 413)
        if not event.get("more_body"):
            return bytes(body)


async def _answer(send: Send, reply: Reply) -> None:
    headers = [*reply.headers, (b"content-length", str(len(reply.body)).encode())]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


class SuperLink:
    """The SuperLink on this machine's loopback, asked over TLS."""

    def __init__(self, server: Server):
        self.client = httpx.AsyncClient(
            base_url=f"https://{LOOPBACK}:{server.link}",
            verify=client_context(server.path / "ca.crt"),
            timeout=ANSWER,
            limits=httpx.Limits(max_connections=None, keepalive_expiry=2),  # shorter than the SuperLink's
            trust_env=False,
        )

    async def __call__(self, call: str, headers: Headers, body: bytes) -> Reply:
        """Pass a call on; where the SuperLink is away, answer so that Flower's clients wait and try again."""
        try:
            said = await self.client.post(f"/v1/fleet/{call}", headers=headers, content=body)
        except httpx.TransportError:
            raise Refused("the SuperLink does not answer", 503) from None
        return Reply(said.status_code, [pair for pair in said.headers.raw if _goes_on(pair[0])], said.content)


def serve(server: Server) -> None:
    """The guard in the foreground."""
    sites = {server.key_of(name): name for name in server.sites}
    guard = Guard(sites, Signature.at(server.path / SIGNATURE), SuperLink(server), server.mutual)
    Bounded.most = max(PER_ADDRESS, PER_SITE * len(sites))
    config = uvicorn.Config(
        guard,  # type: ignore[arg-type]
        host=bind_address(server),
        port=server.port,
        http=Bounded,
        ws="none",
        lifespan="off",
        interface="asgi3",
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_level="warning",
        timeout_keep_alive=30,  # longer than a SuperNode's, so that it is never cut off
        limit_concurrency=Bounded.most * (1 + len(sites)),
        ssl_certfile=str(server.path / "server.crt"),
        ssl_keyfile=str(server.path / "server.key"),
        ssl_ciphers=CIPHERS,
        ssl_ca_certs=str(server.path / "ca.crt") if server.mutual else None,
        ssl_cert_reqs=ssl.CERT_REQUIRED if server.mutual else ssl.CERT_NONE,
    )
    asyncio.run(_listen(uvicorn.Server(config)))


async def _listen(server: uvicorn.Server) -> None:
    """Serve until asked to stop; a caller that does not finish its handshake holds an open file, so it is cut off."""
    loop = asyncio.get_running_loop()
    loop.create_server = partial(loop.create_server, ssl_handshake_timeout=HANDSHAKE)  # type: ignore[method-assign]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES if hard < 0 else min(FILES, hard), hard))
    await server.serve()
