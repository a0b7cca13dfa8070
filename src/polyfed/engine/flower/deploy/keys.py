"""Certificates and keys of a federation: made once, checked before every start."""

import datetime
import ipaddress
import ssl
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from polyfed.engine.flower.deploy.private import read_private, write_private
from polyfed.errors import DataError

DAYS = 825  # how long certificates are valid
CURVE = ec.SECP384R1()  # a NIST curve: Flower takes no other
CURVES = ("secp256r1", "secp384r1", "secp521r1")  # what Flower takes of a site
LOCAL = "localhost"
SERVER, CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH


def make_authority(folder: Path) -> None:
    """A CA of the federation's own: ca.crt for everybody, ca.key for nobody."""
    key = ec.generate_private_key(CURVE)
    name = _named("polyfed federation CA")
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    made = _certificate(name, name, key.public_key()).add_extension(x509.BasicConstraints(True, 0), critical=True)
    made = made.add_extension(usage, critical=True)
    made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    _write_key(folder / "ca.key", key)
    (folder / "ca.crt").write_bytes(_pem(made.sign(key, hashes.SHA384())))


def make_server_certificate(authority: Path, folder: Path, host: str) -> None:
    """server.crt and server.key for a host; the machine itself may always call it localhost.

    It may also be shown by a client, so that the server can ask its own guard where certificates are wanted."""
    names = [_general(word) for word in dict.fromkeys((host, "localhost", "127.0.0.1", "::1"))]
    _make_certificate(authority, folder, "server", host, names, [SERVER, CLIENT])


def make_site_certificate(authority: Path, folder: Path, name: str) -> None:
    """site.crt and site.key: the site's SuperExec knows its SuperNode by it, and with mutual TLS the guard the site.

    It is for localhost, the name by which only a site calls its own machine, and so cannot pretend to be the server."""
    names: list[x509.GeneralName] = [x509.DNSName(word) for word in (name, LOCAL) if word.isascii()]
    _make_certificate(authority, folder, "site", name, names, [SERVER, CLIENT])


def _make_certificate(
    authority: Path,
    folder: Path,
    file: str,
    name: str,
    names: list[x509.GeneralName],
    uses: list[x509.ObjectIdentifier],
) -> None:
    signer = read_certificate(authority / "ca.crt")
    signing = private_key(authority / "ca.key", "pem")
    assert isinstance(signing, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(CURVE)
    made = _certificate(_named(name), signer.subject, key.public_key())
    made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
    made = made.add_extension(x509.BasicConstraints(False, None), critical=True)
    made = made.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    origin = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key())
    made = made.add_extension(origin, critical=False)
    _write_key(folder / f"{file}.key", key)
    (folder / f"{file}.crt").write_bytes(_pem(made.sign(signing, hashes.SHA384())))


def make_site_key(folder: Path) -> None:
    """A site's key pair: `key` stays with the site, `key.pub` is what the server knows it by."""
    key = ec.generate_private_key(CURVE)
    _write_key(folder / "key", key, serialization.PrivateFormat.OpenSSH)
    (folder / "key.pub").write_bytes(_ssh(key.public_key()))


def make_signing_key(folder: Path) -> None:
    """The key that signs the app: `sign.key` stays off the server, `sign.pub` is what sites trust."""
    key = ed25519.Ed25519PrivateKey.generate()
    _write_key(folder / "sign.key", key, serialization.PrivateFormat.OpenSSH)
    (folder / "sign.pub").write_bytes(_ssh(key.public_key()))


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
    if host is not None and _general(host) not in _names_of(made, path):
        raise DataError(f"the certificate {path} is not for the host '{host}'")


def _names_of(made: x509.Certificate, path: Path) -> list[x509.GeneralName]:
    try:
        return list(made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except (x509.ExtensionNotFound, ValueError):
        raise DataError(f"the certificate {path} names no host (it has no subject alternative name)") from None


def check_key_pair(private: Path, certificate: Path) -> None:
    """A private key belongs to a certificate."""
    if pem_of(private_key(private, "pem").public_key()) != pem_of(read_certificate(certificate).public_key()):
        raise DataError(f"the key {private} does not belong to the certificate {certificate}")


def private_key(path: Path, form: str) -> Any:
    """A private key from its file, in the form `pem` or `ssh`; what is wrong with it is one sentence."""
    load = serialization.load_pem_private_key if form == "pem" else serialization.load_ssh_private_key
    content = read_private(path)
    try:
        return load(content, None)
    except TypeError:
        raise DataError(
            f"the private key {path} has a passphrase, which nobody can type at a start: remove it"
        ) from None
    except (ValueError, UnsupportedAlgorithm) as error:
        raise DataError(f"{path} is not a readable private key: {error}") from None


def public_key_of(private: Path) -> bytes:
    """The public half of a site's private key, as Flower names it."""
    return pem_of(_of_a_site(private_key(private, "ssh").public_key(), private))


def public_key(path: Path) -> bytes:
    """A site's public key from its file, as Flower names it."""
    try:
        key = serialization.load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise DataError(f"{path} is not a readable public key: {error}") from None
    return pem_of(_of_a_site(key, path))


def _of_a_site(key: Any, path: Path) -> ec.EllipticCurvePublicKey:
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name not in CURVES:
        kind = key.curve.name if isinstance(key, ec.EllipticCurvePublicKey) else type(key).__name__.strip("_")
        raise DataError(f"the key {path} is of the kind {kind}; a site's key is elliptic, on {' or '.join(CURVES)}")
    return key


def client_context(authority: Path, certificate: Path | None = None) -> ssl.SSLContext:
    """How we speak TLS with the server: its certificate must be of this CA, and ours is shown if we have one."""
    try:
        context = ssl.create_default_context(cafile=str(authority))
        if certificate is not None:
            context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    except (OSError, ssl.SSLError) as error:
        raise DataError(f"{authority} or {certificate} is not a readable certificate: {error}") from None
    return context


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


def _write_key(
    path: Path,
    key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey,
    form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8,
) -> None:
    write_private(path, key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def pem_of(key: object) -> bytes:
    """A public key as Flower names it."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_bytes(serialization.Encoding.PEM, form)  # type: ignore[attr-defined]


def _ssh(key: ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
