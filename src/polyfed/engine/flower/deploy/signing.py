"""The app that sites run, signed by a key which the server does not have."""

import base64
import hashlib
import json
import time
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from flwr.cli.build import build_fab_from_disk
from flwr.proto.fab_pb2 import GetFabResponse
from flwr.supercore.primitives.asymmetric_ed25519 import create_message_to_sign, decode_base64url

from polyfed.config import read_yaml, write_yaml
from polyfed.engine.flower.deploy.keys import private_key
from polyfed.errors import DataError
from polyfed.files import write_file

KEY = "fpk_polyfed"  # what the signing key is called where Flower wants a name for it
SIGNATURE = "signature.json"
TRUSTED = "trusted.yaml"


@dataclass(frozen=True)
class Signature:
    """Which bundle was signed, when, and the proof."""

    digest: str  # SHA-256 of the bundle
    signed_at: int
    signature: str

    @staticmethod
    def at(path: Path) -> "Signature":
        """As `deploy init` left it."""
        try:
            tree = json.loads(path.read_text())
            return Signature(str(tree["digest"]), int(tree["signed_at"]), str(tree["signature"]))
        except (OSError, ValueError, KeyError, TypeError):
            raise DataError(f"{path} holds no signature of the app: sign it with polyfed deploy sign") from None

    def put_into(self, reply: bytes) -> bytes:
        """Flower's answer with the app's bundle, and with our proof where it is the bundle that was signed."""
        message = GetFabResponse.FromString(reply)
        message.fab.verifications.clear()
        if hashlib.sha256(message.fab.content).hexdigest() == self.digest:
            message.fab.verifications["valid_license"] = "yes"  # Flower looks at signatures only where this is said
            proof = {"signed_at": self.signed_at, "signature": self.signature}
            message.fab.verifications[KEY] = json.dumps(proof)
        return message.SerializeToString()


def sign(server: Path, authority: Path) -> None:
    """Sign the server's app as it is now with the key of the authority's folder."""
    key = private_key(authority / "sign.key", "ssh")
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise DataError(f"the key {authority / 'sign.key'} that signs the app must be of the kind Ed25519")
    digest, now = hashlib.sha256(bundle(server)).digest(), int(time.time())
    proof = base64.urlsafe_b64encode(key.sign(create_message_to_sign(digest, now))).decode()
    made = {"digest": digest.hex(), "signed_at": now, "signature": proof}
    write_file(server / SIGNATURE, json.dumps(made).encode())


def bundle(server: Path) -> bytes:
    """The app as Flower packs it; the same files always give the same bytes."""
    try:
        return build_fab_from_disk(server / "app")
    except (OSError, ValueError) as error:
        raise DataError(f"the app in {server / 'app'} cannot be packed: {error}") from None


def trust(authority: Path, site: Path) -> None:
    """A site trusts the key that signs the app, and no other."""
    (site / TRUSTED).write_text(write_yaml({KEY: (authority / "sign.pub").read_text()}))


def trusted(path: Path) -> dict[str, str]:
    """The keys a site trusts; there must be one, since Flower takes an empty list for trust in everybody."""
    try:
        tree = read_yaml(path.read_text(), str(path))
    except OSError as error:
        raise DataError(f"{path}, which names the key that signs the app, cannot be read: {error.strerror}") from None
    if not isinstance(tree, dict) or not tree:
        raise DataError(f"{path} names no key: without one this site would run any app")
    for text in tree.values():
        _ed25519(str(text).encode(), path)
    return {str(name): str(text) for name, text in tree.items()}


def check_app(server: Path) -> None:
    """The server's app is the one that was signed."""
    made = Signature.at(server / SIGNATURE)
    try:
        public = _ed25519((server / "sign.pub").read_bytes(), server / "sign.pub")
        digest = bytes.fromhex(made.digest)
        public.verify(decode_base64url(made.signature), create_message_to_sign(digest, made.signed_at))
    except (OSError, ValueError, OverflowError, InvalidSignature):
        raise DataError(f"{server / SIGNATURE} was not made with the key that belongs to sign.pub") from None
    if hashlib.sha256(bundle(server)).hexdigest() != made.digest:
        raise DataError(f"the app in {server / 'app'} is not the one that was signed, and no site would run it")


def _ed25519(text: bytes, path: Path) -> ed25519.Ed25519PublicKey:
    try:
        key = serialization.load_ssh_public_key(text)
    except ValueError as error:
        raise DataError(f"{path} holds no readable public key: {error}") from None
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise DataError(f"the key in {path} must be of the kind Ed25519, which alone can sign apps")
    return key
