"""What `polyfed deploy init` writes: scripts, the Flower app, and a page for people."""

CONFIG_HEAD = """# What the federation trains: any key of a polyfed experiment (method, model, train, rounds, ...).
# data.classes fixes the classes where no site may hold all of them.
"""
SITE_HEAD = """# data: this site's folder of .npz files (x, y), of tables (.csv with a column label), or of one folder
#   of images per class; it stays here.
# disclose: counts tells the server n and how many samples of each class there are; n tells it n alone.
# allow: methods and models outside polyfed that the server's config may name, for example [hospital.methods:Mine].
# privacy: the least that is accepted, for example {epsilon: 8, delta: 1e-5}; without it the server's config decides.
"""
START_SERVER = """#!/bin/sh
# The server of the federation: SuperLink, SuperExec, guard. What is wrong is said before anything starts.
here=$(cd "$(dirname "$0")" && pwd)
PATH="@BIN@:$PATH"
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 RAY_USAGE_STATS_ENABLED=0
polyfed deploy check "$here" || exit
exec polyfed deploy serve "$here"
"""
START_SITE = """#!/bin/sh
# This site: SuperNode and SuperExec. What is wrong is said before anything starts.
here=$(cd "$(dirname "$0")" && pwd)
command -v polyfed >/dev/null || PATH="@BIN@:$PATH"
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 RAY_USAGE_STATS_ENABLED=0
polyfed deploy check "$here" || exit
exec polyfed deploy join "$here"
"""
PYPROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "polyfed-federation"
version = "1.0.0"
description = "A federation of polyfed {version}"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "polyfed"

[tool.flwr.app.components]
serverapp = "polyfed_app.server_app:app"
clientapp = "polyfed_app.client_app:app"

[tool.flwr.app.config]
home = ""
run = ""
"""
SERVER_APP = '''"""The server's side of the federation."""

from polyfed.engine.flower.deploy.server import app

__all__ = ["app"]
'''
CLIENT_APP = '''"""A site's side of the federation."""

from polyfed.engine.flower.deploy.client import app

__all__ = ["app"]
'''
README = """# A federation

| folder | what it is | where it belongs |
|---|---|---|
| `server/` | certificate, secrets, the sites' public keys, the signed app, config, runs | on the server ({server}) |
| `sites/NAME/` | a site's private key, secret, settings, data, memories and model | to that site, and nowhere else |
| `ca/` | the keys that sign certificates and the app | locked away, never on the server |

Five commands:

    polyfed deploy check {path}              # certificates, keys, secrets; what runs is tried from outside
    {path}/server/start.sh                   # on the server: SuperLink and guard
    {path}/sites/{first}/start.sh            # on every site: its SuperNode
    polyfed deploy run {path}                # on the server: train; `polyfed deploy resume` goes on after a mishap
    polyfed predict {path}/sites/{first} --input x.npy   # on a site: its own model

Put a site's samples into `sites/NAME/data` (or name another folder in `site.yaml`) before its node is started.
`server/config.yaml` says what is trained. `polyfed deploy status {path}` tells who is there and how far it is.
"""
