"""The guard and what stands behind it: what passes, what is refused, and in which words."""

import asyncio
import importlib.util
import json
import os
import shutil
import ssl
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

if importlib.util.find_spec("flwr") is None:
    pytest.skip("flwr is not installed", allow_module_level=True)

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from federations import make_federation
from polyfed.engine.flower.deploy import guard, keys, layout, limits, private, probes, signing
from polyfed.engine.flower.deploy.guard import BODY, CALLS, Guard, Reply
from polyfed.errors import DataError

pytestmark = pytest.mark.extras

SITE = ec.generate_private_key(keys.CURVE)
PEM = keys.pem_of(SITE.public_key())
SEAL = signing.Signature("0" * 64, 0, "")


class Front:
    """A guard in front of a SuperLink that remembers what reached it."""

    def __init__(self, mutual: bool = False, reply: bytes = b""):
        self.passed: list[tuple[str, dict[bytes, bytes], bytes]] = []
        self.reply = reply
        self.guard = Guard({PEM: "a"}, SEAL, self.link, mutual)

    async def link(self, call, headers, body):
        self.passed.append((call, dict(headers), body))
        return Reply(200, [(b"content-type", b"application/protobuf")], self.reply)

    def ask(self, path="/v1/fleet/get-run", method="POST", headers=None, body=b"hello", **more) -> tuple[int, str]:
        """Status and text of the answer."""
        headers = probes.signed(SITE, PEM) if headers is None else headers
        scope = {"type": "http", "method": method, "raw_path": path.encode(), "query_string": b"", **more}
        pairs = headers.items() if isinstance(headers, dict) else headers
        scope["headers"] = [(key.encode(), value.encode()) for key, value in pairs]
        scope.setdefault("client", ("127.0.0.2", 1))
        said: list[dict] = []
        pieces = [body[at : at + 2**20] for at in range(0, len(body), 2**20)] or [b""]

        async def receive():
            piece = pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

        async def send(event):
            said.append(event)

        asyncio.run(self.guard(scope, receive, send))
        return said[0]["status"], said[1]["body"].decode()


def test_every_call_a_site_needs_passes_with_its_signature_and_body():
    front = Front()
    for call in CALLS:
        sent = {**probes.signed(SITE, PEM), "content-type": "application/protobuf", "cookie": "x"}
        assert front.ask(f"/v1/fleet/{call}", headers=sent)[0] == 200
    assert [call for call, _, _ in front.passed] == list(CALLS)
    _, headers, body = front.passed[0]
    assert body == b"hello"
    assert b"flwr-signature" in headers
    assert b"cookie" not in headers


@pytest.mark.parametrize(("method", "target"), probes.NEVER)
def test_what_is_not_for_sites_is_refused_whoever_signs(method, target):
    front = Front()
    path, _, query = target.partition("?")
    assert front.ask(path, method, query_string=query.encode())[0] == 403
    assert not front.passed


def test_a_request_needs_a_fresh_signature_of_a_registered_key():
    front = Front()
    right = probes.signed(SITE, PEM)
    stranger = probes.strangers_headers()
    naive = right | {"flwr-timestamp": right["flwr-timestamp"].removesuffix("+00:00")}
    twice = [*right.items(), ("flwr-public-key", right["flwr-public-key"])]
    for headers, why in (
        ({}, "not signed"),
        (stranger, "not registered"),
        (stranger | {"flwr-public-key": right["flwr-public-key"]}, "not signed"),
        (probes.signed(SITE, PEM, age=3600), "3600 s ago"),
        (probes.signed(SITE, PEM, age=guard.OLD + 1), "too long"),
        (probes.signed(SITE, PEM, age=-60), "clock"),
        (right | {"flwr-timestamp": "yesterday"}, "not signed"),
        (right | {"flwr-signature": "!"}, "not signed"),
        (naive, "not signed"),
        (twice, "not signed"),
    ):
        status, said = front.ask(headers=headers)
        assert (status, why in said) == (403, True), said
    assert not front.passed
    assert front.ask()[0] == 200


def test_with_mutual_tls_the_certificate_must_be_of_the_site_that_signs():
    front = Front(mutual=True)
    assert front.ask(certificate="a")[0] == 200
    for name in ("b", "", "A"):
        assert front.ask(certificate=name)[0] == 403
    assert front.ask()[0] == 403
    assert len(front.passed) == 1
    assert limits.name_in({"subject": ((("countryName", "x"),), (("commonName", "a"),))}) == "a"
    assert limits.name_in(None) == limits.name_in({}) == ""


def test_a_body_that_is_too_large_is_refused_with_or_without_a_word():
    front = Front()
    assert front.ask(headers={**probes.signed(SITE, PEM), "content-length": str(BODY + 1)})[0] == 413
    assert front.ask(headers={**probes.signed(SITE, PEM), "content-length": "9" * 5000})[0] == 413
    assert front.ask(body=b"x" * (BODY + 1))[0] == 413
    assert not front.passed
    assert front.ask(body=b"x" * BODY)[0] == 200


def test_too_many_requests_wait_and_nobody_pays_for_another(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(limits.time, "monotonic", lambda: now[0])
    allowance = limits.Allowance(rate=2, burst=3)
    assert [allowance.take("a") for _ in range(4)] == [True, True, True, False]
    assert allowance.take("b")
    now[0] += 1
    assert [allowance.take("a") for _ in range(3)] == [True, True, False]
    monkeypatch.setattr(limits, "CALLERS", 2)
    assert [allowance.take(caller) for caller in "cd"] == [True, True]
    assert allowance.take("a"), "whoever was silent for longest is forgotten, so memory stays small"

    front = Front()
    front.guard.by_key = limits.Allowance(0, 1)
    assert [front.ask()[0] for _ in range(2)] == [200, 503], "503 is what Flower's clients wait at"
    front.guard.by_address = limits.Allowance(0, 1)
    assert front.ask("/docs")[0] == 403
    assert front.ask("/docs")[0] == 503
    assert front.ask("/docs", client=("127.0.0.3", 1))[0] == 403


def test_a_connection_without_a_request_is_closed_and_one_at_work_is_not(monkeypatch):
    now, closed = [0.0], []
    monkeypatch.setattr(limits.time, "monotonic", lambda: now[0])
    made = object.__new__(limits.Bounded)
    made.busy, made.cycle = 0.0, SimpleNamespace(response_complete=False)
    made.transport = SimpleNamespace(abort=lambda: closed.append(now[0]))
    made.loop = SimpleNamespace(call_later=lambda seconds, look: None)
    for now[0], complete in ((1000.0, False), (1000.0 + limits.IDLE, True), (1001.0 + limits.IDLE, True)):
        made.cycle.response_complete = complete
        made._look()
    assert closed == [1001.0 + limits.IDLE]
    made.cycle, made.busy = None, now[0]
    now[0] += limits.IDLE + 1
    made._look()
    assert len(closed) == 2, "not even the first request came"


def test_the_signature_goes_with_the_signed_app_and_with_no_other(tmp_path):
    import hashlib

    from flwr.proto.fab_pb2 import Fab, GetFabResponse

    seal = signing.Signature(hashlib.sha256(b"app").hexdigest(), 7, "proof")
    signed = GetFabResponse.FromString(seal.put_into(GetFabResponse(fab=Fab(content=b"app")).SerializeToString()))
    assert json.loads(signed.fab.verifications[signing.KEY]) == {"signed_at": 7, "signature": "proof"}
    forged = Fab(content=b"other", verifications={signing.KEY: "{}", "valid_license": "yes"})
    other = GetFabResponse.FromString(seal.put_into(GetFabResponse(fab=forged).SerializeToString()))
    assert other.fab.content == b"other"
    assert not other.fab.verifications


# ---- files


def test_private_files_are_for_their_owner_or_refused(tmp_path):
    file = tmp_path / "secret"
    private.make_secret(file)
    assert len(private.read_private(file)) >= 32
    assert file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        private.make_secret(file)
    for mode in (0o640, 0o604, 0o660):
        file.chmod(mode)
        with pytest.raises(DataError, match="chmod 600"):
            private.read_private(file)
    file.chmod(0o600)
    file.write_bytes(b"")
    with pytest.raises(DataError, match="is empty"):
        private.read_private(file)
    with pytest.raises(DataError, match="cannot be read: No such file"):
        private.read_private(tmp_path / "nothing")


@pytest.fixture(scope="module")
def made(tmp_path_factory, cli) -> Path:
    """A federation on disk that nobody changes."""
    return make_federation(tmp_path_factory.mktemp("guard") / "f", cli, "a,b")


@pytest.fixture
def folder(made, tmp_path) -> Path:
    """The same to be spoiled."""
    return shutil.copytree(made, tmp_path / "f")


@pytest.mark.parametrize(
    "file",
    [
        *("server/server.key", "server/control.token", "server/superexec.secret", "ca/ca.key", "ca/sign.key"),
        *("sites/a/key", "sites/a/superexec.secret", "sites/a/site.key"),
    ],
)
def test_check_refuses_each_private_file_that_others_may_read(folder, file, cli):
    (folder / file).chmod(0o640)
    said = cli("deploy", "check", str(folder))
    assert (said.code, said.out) == (3, "")
    assert f"{file}: chmod 600" in said.err.replace(f"{folder}/", "")


def _ssh(key) -> bytes:
    form = serialization.PrivateFormat.OpenSSH
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _with_passphrase(path: Path) -> None:
    """The same key, as many people keep theirs."""
    if shutil.which("ssh-keygen") is None:
        pytest.skip("there is no ssh-keygen here")
    words = ["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(path)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def _pkcs8(key, password: bytes) -> bytes:
    how = serialization.BestAvailableEncryption(password)
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how)


def _spoil(folder: Path, what: str) -> None:
    """One thing wrong with a federation."""
    site, server = folder / "sites" / "a", folder / "server"
    key = ec.generate_private_key(keys.CURVE)
    public = rsa.generate_private_key(65537, 2048).public_key()
    form = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)

    def settings(file: Path, old: str, new: str) -> None:
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))

    doings = {
        "no server key": lambda: (server / "server.key").unlink(),
        "garbage server key": lambda: (server / "server.key").write_bytes(b"\0garbage"),
        "server key with passphrase": lambda: (server / "server.key").write_bytes(_pkcs8(key, b"x")),
        "no site key": lambda: (site / "key").unlink(),
        "garbage site key": lambda: (site / "key").write_bytes(b"\0garbage"),
        "site key with passphrase": lambda: _with_passphrase(site / "key"),
        "site key of another kind": lambda: (site / "key").write_bytes(_ssh(ed25519.Ed25519PrivateKey.generate())),
        "public key of another kind": lambda: (server / "keys" / "a.pub").write_bytes(public.public_bytes(*form)),
        "another site's key": lambda: shutil.copy(server / "keys" / "b.pub", server / "keys" / "a.pub"),
        "certificate without a name": lambda: _nameless(folder),
        "garbage certificate": lambda: (server / "server.crt").write_bytes(b"\0garbage"),
        "another host": lambda: settings(server / "federation.yaml", "host: 127.0.0.1", "host: fl.example.org"),
        "a host that is none": lambda: settings(server / "federation.yaml", "host: 127.0.0.1", "host: a b/c"),
        "a port that is none": lambda: settings(server / "federation.yaml", "link: ", "link: 99"),
        "a port that is a word": lambda: settings(site / "site.yaml", "port: ", "port: x"),
        "a server without port": lambda: settings(site / "site.yaml", "server: 127.0.0.1:", "server: x"),
        "a key nobody knows": lambda: settings(site / "site.yaml", "allow: []", "alow: []"),
        "a site unknown to the server": lambda: shutil.copytree(site, folder / "sites" / "z"),
        "a site that trusts everybody": lambda: (site / "trusted.yaml").write_text("{}\n"),
        "a site that trusts no key": lambda: (site / "trusted.yaml").write_text("fpk_a: ssh-rsa AAAA\n"),
        "a changed app": lambda: settings(server / "app" / "polyfed_app" / "client_app.py", "app", "ap"),
        "no signature": lambda: (server / "signature.json").unlink(),
        "a forged signature": lambda: settings(server / "signature.json", '"signed_at": ', '"signed_at": 1'),
        "an allowed name without a class": lambda: settings(site / "site.yaml", "allow: []", "allow: [mine]"),
    }
    doings[what]()


def _nameless(folder: Path) -> None:
    """A certificate of the server's, as it should be but for its names."""
    from cryptography.hazmat.primitives import hashes

    key = ec.generate_private_key(keys.CURVE)
    signer = keys.read_certificate(folder / "ca" / "ca.crt")
    made = keys._certificate(keys._named("127.0.0.1"), signer.subject, key.public_key())
    done = made.sign(keys.private_key(folder / "ca" / "ca.key", "pem"), hashes.SHA384())
    (folder / "server" / "server.crt").write_bytes(done.public_bytes(serialization.Encoding.PEM))


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("no server key", "server.key cannot be read: No such file"),
        ("garbage server key", "server.key is not a readable private key"),
        ("server key with passphrase", "server.key has a passphrase"),
        ("no site key", "sites/a/key cannot be read: No such file"),
        ("garbage site key", "sites/a/key is not a readable private key"),
        ("site key with passphrase", "sites/a/key has a passphrase"),
        ("site key of another kind", "sites/a/key is of the kind Ed25519PublicKey"),
        ("public key of another kind", "keys/a.pub is of the kind RSAPublicKey"),
        ("another site's key", "two sites have the same key"),
        ("certificate without a name", "names no host"),
        ("garbage certificate", "server.crt is not a readable certificate"),
        ("another host", "is not for the host 'fl.example.org'"),
        ("a host that is none", "a host is a name such as fl.example.org or an address, not 'a b/c'"),
        ("a port that is none", "federation.yaml: 'link': input should be less than or equal to 65535"),
        ("a port that is a word", "site.yaml: 'port': input should be a valid integer"),
        ("a server without port", "the server's address is host:port, not 'x"),
        ("a key nobody knows", "did you mean 'allow'?"),
        ("a site unknown to the server", "the site 'z'"),
        ("a site that trusts everybody", "without one this site would run any app"),
        ("a site that trusts no key", "trusted.yaml holds no readable public key"),
        ("a changed app", "is not the one that was signed"),
        ("no signature", "holds no signature of the app"),
        ("a forged signature", "was not made with the key that belongs to sign.pub"),
        ("an allowed name without a class", "allow names module:Class, not 'mine'"),
    ],
)
def test_check_says_in_a_sentence_what_is_wrong(folder, cli, what, sentence):
    _spoil(folder, what)
    said = cli("deploy", "check", str(folder))
    assert said.code in (2, 3), said.err
    assert sentence in said.err.replace(f"{folder}/", ""), said.err
    assert said.err.count("\n") == 1


def test_an_app_that_was_changed_can_be_signed_again_where_the_key_is(folder, cli):
    app = folder / "server" / "app" / "polyfed_app" / "client_app.py"
    app.write_text(app.read_text() + "\n# changed\n")
    assert cli("deploy", "check", str(folder)).code == 3
    assert cli("deploy", "sign", str(folder)).code == 0
    assert cli("deploy", "check", str(folder)).code == 0
    shutil.move(folder / "ca", folder.parent / "elsewhere")
    assert "sign.key cannot be read" in cli("deploy", "sign", str(folder)).err
    assert cli("deploy", "sign", str(folder), "--ca", str(folder.parent / "elsewhere")).code == 0


def test_a_site_imports_only_what_its_own_settings_allow(folder, tmp_path):
    from polyfed.config import write_yaml
    from polyfed.engine.flower.deploy.client import introduce
    from polyfed.errors import UsageError

    site = folder / "sites" / "a"
    evil = tmp_path / "evil.py"
    evil.write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w')\nfrom polyfed.methods.base import Method\nclass M(Method): pass\n"
    )
    context = SimpleNamespace(node_config={"home": str(site)})

    def order(**sections):
        return {"config": write_yaml(layout.FIRST_CONFIG | sections), "sites": ["a", "b"], "disclose": "counts"}

    for sections in (
        {"method": {"name": f"{evil}:M"}},
        {"model": {"name": f"{evil}:M"}},
        {"method": {"name": "fedavg-ft", "base": {"name": f"{evil}:M"}}},
        {"method": {"name": "own_methods:Counting"}},
        {"split": {"partition": f"{evil}:M"}},
    ):
        with pytest.raises(UsageError, match="this site does not allow it"):
            introduce(order(**sections), context)
    assert not (tmp_path / "ran").exists(), "nothing was imported"
    text = (site / "site.yaml").read_text()
    (site / "site.yaml").write_text(text.replace("allow: []", f"allow: ['{evil}:M']"))
    with pytest.raises(DataError):  # no samples here: the method was accepted
        introduce(order(method={"name": f"{evil}:M"}), context)
    assert (tmp_path / "ran").exists()


OPEN = [("guard", "POST", probes.CONTROL), ("guard", "GET", "/docs"), ("guard", "POST", probes.ASKED)]
OPEN += [("link", "POST", target) for target in (probes.CONTROL, probes.RUNTIME, probes.REGISTER)]
OPEN += [("link", "GET", "/docs"), ("token", "", ""), ("no certificate", "", ""), ("public link", "", "")]


@pytest.mark.parametrize("opened", [None, *OPEN], ids=str)
def test_check_finds_each_door_that_is_open(made, monkeypatch, opened):
    server = replace(layout.Server.at(made), host="127.0.0.2")
    monkeypatch.setattr(probes.keys, "client_context", lambda authority, certificate=None: certificate)

    def ask(door, method, target, headers=None):
        if door.port == server.port:
            if door.context is None and opened != ("no certificate", "", ""):
                raise ConnectionResetError
            return 200 if opened == ("guard", method, target) else 403
        if door.host == server.host and opened != ("public link", "", ""):
            raise ConnectionRefusedError
        if "authorization" in (headers or {}):
            return 401 if opened == ("token", "", "") else 200
        return 200 if opened == ("link", method, target) else 401

    monkeypatch.setattr(probes.Door, "ask", ask)
    if opened is None:
        assert "are shut" in probes.prove_closed(server)[0]
    else:
        with pytest.raises(DataError, match=r"must refuse|does not take the token|mutual TLS is not on|loopback alone"):
            probes.prove_closed(server)


# ---- a guard that listens


@pytest.fixture(scope="module")
def listening(made):
    """A guard with mutual TLS and no SuperLink behind it."""
    server = layout.Server.at(made)
    line = [sys.executable, "-m", "polyfed.cli", "deploy", "guard", str(made)]
    process = subprocess.Popen(line, env=layout.flower_environment(server.path), stderr=subprocess.DEVNULL)
    end = time.monotonic() + 60
    while not is_listening(server) and time.monotonic() < end:
        time.sleep(0.1)
    yield server
    process.terminate()
    process.wait(20)


def is_listening(server: layout.Server) -> bool:
    from polyfed.engine.flower.deploy.processes import listens

    return listens(server)


def _door(server: layout.Server, context: ssl.SSLContext) -> probes.Door:
    return probes.Door("127.0.0.1", server.port, context, source="127.0.0.2" if os.uname().sysname == "Linux" else None)


def _asked(server: layout.Server, certificate: Path | None, key_of: Path) -> int | str:
    """The status of a signed request, or why there was none."""
    key = keys.private_key(key_of / "key", "ssh")
    context = keys.client_context(server.path / "ca.crt", certificate)
    try:
        return _door(server, context).ask("POST", probes.ASKED, probes.signed(key, keys.pem_of(key.public_key())))
    except OSError as error:
        return type(error).__name__


def test_missing_foreign_and_expired_certificates_get_no_answer(listening, made, tmp_path, cli, monkeypatch):
    a, b = made / "sites" / "a", made / "sites" / "b"
    assert _asked(listening, a / "site.crt", a) == 503, "it passes, and there is no SuperLink behind"
    assert _asked(listening, b / "site.crt", a) == 403, "another site's certificate"
    assert _asked(listening, listening.path / "server.crt", a) == 403, "the server's own certificate is no site's"
    assert isinstance(_asked(listening, None, a), str)
    cli("deploy", "init", str(tmp_path / "other"), "--sites", "a,b", "--mutual-tls")
    assert isinstance(_asked(listening, tmp_path / "other" / "sites" / "a" / "site.crt", a), str)
    monkeypatch.setattr(keys, "DAYS", -0.001)
    keys.make_site_certificate(made / "ca", tmp_path, "a")
    assert isinstance(_asked(listening, tmp_path / "site.crt", a), str)
    with pytest.raises(DataError, match="expired on"):
        keys.check_certificate(tmp_path / "site.crt", made / "ca" / "ca.crt")


def test_every_door_of_a_listening_guard_is_shut_as_sent(listening, made):
    a = made / "sites" / "a"
    probes.prove_guard(_door(listening, keys.client_context(a / "ca.crt", a / "site.crt")))
    probes.prove_certificate_wanted(_door(listening, keys.client_context(a / "ca.crt")))
    key = keys.private_key(a / "key", "ssh")
    signed = probes.signed(key, keys.pem_of(key.public_key()))
    door = _door(listening, keys.client_context(a / "ca.crt", a / "site.crt"))
    with pytest.raises(DataError, match=r"answers 503 .* must refuse"):  # a door that is open is seen to be
        door.must_refuse("POST", probes.ASKED, signed)


def test_a_site_is_told_whether_the_guard_takes_it(listening, made, tmp_path):
    site = layout.Site.at(made, "a")
    assert "knows its key" in probes.prove_site(site)[0]
    with pytest.raises(DataError, match="refuses the connection"):
        probes.prove_site(replace(site, mutual=False))
    stranger = shutil.copytree(site.path, tmp_path / "stranger", ignore=shutil.ignore_patterns("key*"))
    keys.make_site_key(stranger)
    with pytest.raises(DataError, match="refuses site 'a': its key is not registered there, or its clock is wrong"):
        probes.prove_site(replace(site, path=stranger))
    assert probes.prove_site(replace(site, server_port=9)) == [], "a server that is not there yet is no fault"


def test_flowers_client_shows_our_certificate_and_signs_as_the_guard_wants(listening, made):
    import httpx
    from flwr.proto.run_pb2 import GetRunRequest
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    from polyfed.engine.flower.deploy.supernode import showing

    site = layout.Site.at(made, "a")
    key = keys.private_key(site.path / "key", "ssh")
    signer = NodeAuthHttpInterceptor(key, key.public_key())
    root = (site.path / "ca.crt").read_bytes()
    with showing(site).from_server_address(site.server, False, root, [signer]) as client:
        with pytest.raises(httpx.HTTPStatusError) as raised:
            client.GetRun(GetRunRequest())
        assert raised.value.response.text == "the SuperLink does not answer"
    with (
        FleetHttpClient.from_server_address(site.server, False, root, [signer]) as client,
        pytest.raises(httpx.HTTPError),
    ):
        client.GetRun(GetRunRequest())


@pytest.mark.slow  # it waits
def test_who_does_not_finish_a_handshake_is_not_waited_for(listening):
    import socket

    with socket.create_connection(("127.0.0.1", listening.port), 5) as plain:
        started = time.monotonic()
        plain.settimeout(3 * guard.HANDSHAKE)
        assert plain.recv(1) == b""
        assert time.monotonic() - started < 2 * guard.HANDSHAKE


def test_one_address_has_so_many_connections_and_no_more(listening, made):
    import socket

    a = made / "sites" / "a"
    context = keys.client_context(a / "ca.crt", a / "site.crt")
    opened = []
    try:
        closed = 0
        for _ in range(limits.PER_ADDRESS + 3):
            plain = socket.create_connection(("127.0.0.1", listening.port), 10, source_address=("127.0.0.1", 0))
            opened.append(context.wrap_socket(plain, server_hostname="127.0.0.1"))
        for each in opened[-3:]:
            each.settimeout(10)
            try:
                closed += each.recv(1) == b""
            except OSError:
                closed += 1
        assert closed == 3
        assert _asked(listening, a / "site.crt", a) == 503, "another address is not shut out"
    finally:
        for each in opened:
            each.close()
