"""Certificates and keys of a federation: made once, checked before every start."""

import datetime
import ipaddress
import os
import socket
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from polyfed.errors import DataError

DAYS = 825  # how long certificates are valid
CURVE = ec.SECP384R1()  # a NIST curve: Flower takes no other


def make_authority(folder: Path) -> None:
    """A CA of the federation's own: ca.crt for everybody, ca.key for nobody."""
    key = ec.generate_private_key(CURVE)
    name = _named("polyfed federation CA")
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    made = _certificate(name, name, key.public_key()).add_extension(x509.BasicConstraints(True, 0), critical=True)
    made = made.add_extension(usage, critical=True)
    made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    _write_private(folder / "ca.key", key)
    (folder / "ca.crt").write_bytes(_pem(made.sign(key, hashes.SHA384())))


def make_server_certificate(authority: Path, folder: Path, host: str) -> None:
    """server.crt and server.key for a host; the machine itself may always call it localhost."""
    signer = read_certificate(authority / "ca.crt")
    signing = serialization.load_pem_private_key((authority / "ca.key").read_bytes(), None)
    assert isinstance(signing, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(CURVE)
    names = [_general(word) for word in dict.fromkeys((host, "localhost", "127.0.0.1", "::1"))]
    made = _certificate(_named(host), signer.subject, key.public_key())
    made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
    made = made.add_extension(x509.BasicConstraints(False, None), critical=True)
    origin = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key())
    made = made.add_extension(origin, critical=False)
    _write_private(folder / "server.key", key)
    (folder / "server.crt").write_bytes(_pem(made.sign(signing, hashes.SHA384())))


def make_site_key(folder: Path) -> None:
    """A site's key pair: `key` stays with the site, `key.pub` is what the server knows it by."""
    key = ec.generate_private_key(CURVE)
    _write_private(folder / "key", key, serialization.PrivateFormat.OpenSSH)
    (folder / "key.pub").write_bytes(_ssh(key.public_key()))


def read_certificate(path: Path) -> x509.Certificate:
    """A certificate from a PEM file."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a readable certificate: {error}") from None


def check_certificate(path: Path, authority: Path, host: str | None = None) -> None:
    """A certificate is in its dates and from this CA, and is for this host; or a sentence that says what is wrong."""
    made, signer = read_certificate(path), read_certificate(authority)
    now = datetime.datetime.now(datetime.UTC)
    for one, where in ((made, path), (signer, authority)):
        if now < one.not_valid_before_utc:
            raise DataError(
                f"the certificate {where} is not valid before {one.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
            )
        if now > one.not_valid_after_utc:
            raise DataError(f"the certificate {where} expired on {one.not_valid_after_utc:%Y-%m-%d}; make a new one")
    try:
        made.verify_directly_issued_by(signer)
    except (ValueError, TypeError, InvalidSignature):
        raise DataError(f"the certificate {path} was not made by the CA {authority}") from None
    if (
        host is not None
        and _general(host) not in made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    ):
        raise DataError(f"the certificate {path} is not for the host '{host}'")


def check_key_pair(private: Path, certificate: Path) -> None:
    """A private key belongs to a certificate."""
    key = serialization.load_pem_private_key(private.read_bytes(), None)
    if _pem_of(key.public_key()) != _pem_of(read_certificate(certificate).public_key()):
        raise DataError(f"the key {private} does not belong to the certificate {certificate}")


def public_key_of(private: Path) -> bytes:
    """The public half of a site's private key, as Flower names it."""
    try:
        key = serialization.load_ssh_private_key(private.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise DataError(f"{private} is not a readable private key: {error}") from None
    return _pem_of(key.public_key())


def public_key(path: Path) -> bytes:
    """A site's public key from its file, as Flower names it."""
    try:
        return _pem_of(serialization.load_ssh_public_key(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a readable public key: {error}") from None


def answer_of(host: str, port: int, authority: Path, seconds: float = 5) -> str:
    """What keeps this machine from a server: nothing, or one sentence; asked over TLS with this CA."""
    context = ssl.create_default_context(cafile=str(authority))
    try:
        with socket.create_connection((host, port), seconds) as plain, context.wrap_socket(plain, server_hostname=host):
            return ""
    except ssl.SSLCertVerificationError as error:
        return f"the server at {host}:{port} is not the one {authority} vouches for: {error.verify_message}"
    except ssl.SSLError as error:
        return f"the server at {host}:{port} does not speak TLS: {error.reason}"
    except OSError:
        return ""  # not there yet: that is no fault of this machine's


def _named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _general(word: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(word))
    except ValueError:
        return x509.DNSName(word)


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=DAYS))
    )


def _write_private(
    path: Path,
    key: ec.EllipticCurvePrivateKey,
    form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8,
) -> None:
    """For the owner's eyes only, from the first byte on."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _pem_of(key: object) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_bytes(serialization.Encoding.PEM, form)  # type: ignore[attr-defined]


def _ssh(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
