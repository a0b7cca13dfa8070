"""Flower's simulation on Ray: the same jobs in actors, on this machine or on a cluster.

What stands here imports neither torch nor Flower: the programs of a server and of a site only pass messages on.
"""

import importlib.util
import logging
import os
import sys

from polyfed.errors import UsageError

SILENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # Ray's way to silence a warning
}


def need_flower() -> None:
    """Refuse to go on where Flower or Ray is missing; switch their telemetry off."""
    for package in ("flwr", "ray"):
        if importlib.util.find_spec(package) is None:
            raise UsageError(f"the flower engine needs the package '{package}': pip install 'polyfed[flower]'")
    hush()


def hush() -> None:
    """Flower's and Ray's telemetry off, here and in every process started from here; their chatter too."""
    os.environ.update(SILENT)
    telemetry = sys.modules.get("flwr.supercore.telemetry")
    if telemetry is not None:  # imported before us: it read the variable then
        telemetry.FLWR_TELEMETRY_ENABLED = "0"  # type: ignore[attr-defined]
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
