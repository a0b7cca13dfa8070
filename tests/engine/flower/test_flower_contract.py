"""The pieces of Flower that polyfed calls, replaces or wraps: a release that moves one fails here, with a sentence."""

import asyncio
import base64
import dataclasses
import hashlib
import importlib
import importlib.util
import inspect
from pathlib import Path

import pytest

if importlib.util.find_spec("flwr") is None:
    pytest.skip("flwr is not installed", allow_module_level=True)

import flwr

from federations import make_federation
from polyfed.engine.flower.deploy import contract, guard, keys, layout, limits, probes, processes, signing
from polyfed.errors import RunFailed

pytestmark = pytest.mark.extras

RELEASE = "1.41."


@pytest.fixture(scope="module")
def made(tmp_path_factory, cli) -> Path:
    return make_federation(tmp_path_factory.mktemp("contract") / "f", cli, "a,b")


def test_the_release_is_the_one_polyfed_is_tested_with():
    assert flwr.__version__.startswith(RELEASE), f"polyfed is tested with flwr {RELEASE}x, not {flwr.__version__}"


def test_the_public_api_has_what_the_adapter_uses():
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict  # noqa: F401
    from flwr.clientapp import ClientApp
    from flwr.proto.node_pb2 import NodeInfo
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    for owner, names in (
        (Grid, ("get_nodes", "get_node_ids", "push_messages", "pull_messages")),
        (ClientApp, ("query", "train", "evaluate")),
        (ServerApp, ("main",)),
    ):
        for name in names:
            assert callable(getattr(owner, name, None)), f"flwr's {owner.__name__} has no '{name}' any more"
    wanted = ["server_app", "client_app", "num_supernodes", "backend_name", "backend_config"]
    assert list(inspect.signature(run_simulation).parameters)[:5] == wanted, "run_simulation takes other arguments"
    assert {"node_id", "public_key"} <= {f.name for f in NodeInfo.DESCRIPTOR.fields}, "nodes do not show their keys"


@pytest.mark.parametrize(("module", "name", "what"), contract.PIECES)
def test_each_piece_is_where_it_was(module, name, what):
    assert hasattr(importlib.import_module(module), name), f"flwr moved {module}.{name}: {what} must be built anew"


def test_without_a_piece_nothing_starts(made, cli, monkeypatch):
    monkeypatch.setattr(contract, "PIECES", (("flwr.superlink.main", "gone", ""),))
    for words in ((str(made),), (str(made), "--site", "a")):
        said = cli("deploy", "check", *words)
        assert said.code == 4
        assert "has no flwr.superlink.main.gone, on which polyfed's protection is built: not started" in said.err
    with pytest.raises(RunFailed, match=r"would start open \(a door is shut cannot be made sure\): not started"):
        contract.refuse_open("SuperLink", {"a window is shut": True, "a door is shut": False})


def test_the_fleets_calls_are_those_the_guard_passes_and_the_two_it_never_does():
    from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

    there = {path for _, path in PROTOBUF_REQUEST_TYPES if path.startswith("/v1/fleet/")}
    ours = {path.decode() for path in guard.PASSED} | {"/v1/fleet/register-node", "/v1/fleet/unregister-node"}
    assert there == ours, "flwr's fleet has other calls: look at each before the guard passes it"


def test_a_supernode_signs_with_the_headers_the_guard_reads():
    import httpx
    from cryptography.hazmat.primitives.asymmetric import ec
    from flwr.supercore.protobuf.client import ProtobufRequestContext
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    key = ec.generate_private_key(keys.CURVE)
    pem = keys.pem_of(key.public_key())
    request = httpx.Request("POST", "https://127.0.0.1/v1/fleet/get-run")
    context = ProtobufRequestContext("", None, request)
    NodeAuthHttpInterceptor(key, key.public_key()).intercept(context, lambda context: httpx.Response(200))
    door = guard.Guard({pem: "a"}, signing.Signature("", 0, ""), None)
    assert door.signer(request.headers.raw) == pem, "flwr's SuperNodes sign otherwise: the guard would refuse them"


def test_flower_cuts_what_it_sends_smaller_than_the_guards_limit():
    from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE

    assert FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE < guard.BODY / 2, "flwr sends larger pieces than the guard passes"


def test_what_flower_waits_at_is_what_the_guard_says_when_there_is_too_much():
    from flwr.supercore.retry import http_retry

    assert 503 in http_retry._RETRYABLE_STATUS_CODES, "flwr's clients do not wait at 503: limits would end runs"


def test_uvicorns_protocol_has_what_a_bounded_connection_uses():
    source = inspect.getsource(limits.H11Protocol)
    for word in ("self.app = ", "self.loop = ", "self.transport = ", "self.cycle: ", "event.target.partition"):
        assert word in source, f"uvicorn's h11 protocol has no '{word.strip()}' any more"


def test_a_site_takes_our_signature_and_no_other(made):
    from flwr.common.serde import fab_from_proto, fab_to_proto
    from flwr.proto.fab_pb2 import GetFabResponse
    from flwr.supercore.fab import Fab
    from flwr.supernode.start_client_internal import _verify_fab

    trusted = signing.trusted(made / "sites" / "a" / signing.TRUSTED)
    seal = signing.Signature.at(made / "server" / signing.SIGNATURE)

    def verified(content: bytes, seal: signing.Signature) -> bool:
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        reply = seal.put_into(GetFabResponse(fab=fab_to_proto(fab)).SerializeToString())
        fab = fab_from_proto(GetFabResponse.FromString(reply).fab)
        return bool(fab.verifications.get("valid_license")) and _verify_fab(fab, trusted)

    app = signing.bundle(made / "server")
    assert verified(app, seal), "flwr's SuperNode does not take the signature"
    assert not verified(app + b"x", seal)
    assert not verified(app + b"x", dataclasses.replace(seal, digest=hashlib.sha256(app + b"x").hexdigest()))
    forged = base64.urlsafe_b64encode(b"x" * 64).decode()
    assert not verified(app, dataclasses.replace(seal, signature=forged))
    assert not verified(app, dataclasses.replace(seal, signed_at=seal.signed_at + 1))


def test_flowers_command_line_sends_our_token(made, monkeypatch):
    from flwr.cli import utils
    from flwr.cli.auth_plugin import oidc_cli_plugin
    from flwr.supercore.credential_store import FileCredentialStore

    server = layout.Server.at(made)
    processes.write_connection(server)
    file = server.path / "flower" / "credentials.yaml"
    assert file.stat().st_mode & 0o077 == 0
    for module in (utils, oidc_cli_plugin):
        monkeypatch.setattr(module, "get_credential_store", lambda: FileCredentialStore(file))
    plugin = utils.load_cli_auth_plugin_from_connection(f"127.0.0.1:{server.link}")
    plugin.load_tokens()
    sent = dict(plugin.write_tokens_to_metadata([]))
    token = (server.path / layout.TOKEN).read_text()
    assert token in sent.values(), "flwr's command line does not find the token in credentials.yaml"


def test_the_superlink_is_closed_to_whoever_brings_no_secret(made, monkeypatch):
    import httpx

    from polyfed.engine.flower.deploy import superlink

    server = layout.Server.at(made)
    monkeypatch.setattr(superlink.sys, "argv", [])  # restored afterwards
    app = superlink.make(server)
    token = (server.path / layout.TOKEN).read_text()

    async def asked() -> list[int]:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="https://127.0.0.1") as client:
            right = {"authorization": f"Bearer {token}"}
            wrong = {"authorization": f"Bearer {token[:-1]}x"}
            said = []
            for method, path, headers in (
                ("POST", probes.CONTROL, right),
                ("POST", probes.CONTROL, wrong),
                ("POST", probes.CONTROL, {}),
                ("POST", "/v1/control/start-run", {}),
                ("POST", "/v1/control/get-login-details", {}),
                ("POST", probes.RUNTIME, right),
                ("POST", "/v1/runtime/pull-task-input", right),
                ("POST", probes.REGISTER, probes.strangers_headers()),
                ("POST", probes.ASKED, probes.strangers_headers()),
                ("GET", "/docs", {}),
                ("GET", "/openapi.json", {}),
            ):
                sent = {"content-type": "application/protobuf", **headers}
                said.append((await client.request(method, path, headers=sent)).status_code)
            return said

    assert asyncio.run(asked()) == [200, 401, 401, 401, 403, 401, 401, 403, 401, 403, 403]
    monkeypatch.setenv("FLWR_INTERNAL_GRPC_CONTROL_API", "1")
    with pytest.raises(RunFailed, match="it has no second interface"):
        superlink.make(server)


def test_superexec_takes_the_secret_and_installs_nothing(made):
    parser = importlib.import_module("flwr.supercore.cli.flower_superexec")._parse_args()
    _, *words = processes._superexec(made / "server", "127.0.0.1", 1)
    args = parser.parse_args(words)
    assert args.superexec_auth_secret_file == str(made / "server" / layout.SECRET)
    assert (args.root_certificates, args.insecure) == (str(made / "server" / "ca.crt"), False)
    assert args.runtime_dependency_install is False, "flwr's SuperExec would install what an app asks for"


def test_every_call_of_the_runtime_wants_a_secret_or_a_tasks_token():
    from flwr.supercore.dependencies.runtime import SuperExecAuthDependency

    routes = importlib.import_module("flwr.supercore.routers.runtime.router").router.routes
    assert len(routes) > 10
    for route in routes:
        needs = {getattr(d.call, "__name__", type(d.call).__name__) for d in route.dependant.dependencies}
        open_to_all = not needs & {"get_task", SuperExecAuthDependency.__name__}
        assert not open_to_all, f"flwr's runtime answers {route.path} to everybody"


def test_a_supernode_starts_closed_or_not_at_all(made, monkeypatch):
    from polyfed.engine.flower.deploy import supernode

    monkeypatch.setattr(supernode.sys.modules[contract.SUPERNODE], supernode.PARSE, _unchanged(supernode))
    monkeypatch.setattr(supernode.fleet_http_connection, "FleetHttpClient", supernode.FleetHttpClient)
    monkeypatch.setattr(supernode.sys, "argv", [])
    site = layout.Site.at(made, "a")
    config = supernode.prepare(site)
    assert config.trusted_entities == signing.trusted(site.path / signing.TRUSTED)
    assert (config.isolation, config.host, config.insecure) == ("process", "127.0.0.1", False)
    assert config.node_config == {"home": str(site.path)}
    assert supernode.fleet_http_connection.FleetHttpClient.__name__ == "Showing"
    with pytest.raises(RunFailed, match="its certificate is shown"):  # another is in its place already
        supernode.prepare(site)


def _unchanged(supernode):
    return getattr(importlib.import_module(contract.SUPERNODE), supernode.PARSE)
