"""One set of runs with something for every figure, for all tests that draw."""

from pathlib import Path

import pytest
from hand_made import kept_pictures, measured, of_classes, of_clients, spent, write_run

AFTER = "personal_final"


@pytest.fixture(scope="session")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs: three methods, two seeds, clusters, similarities, lost uploads, one run unfinished."""
    root = tmp_path_factory.mktemp("everything")
    for method, better in (("fedavg", 0.0), ("mupfl", 0.2)):
        for seed in (0, 1):
            low = 0.3 + better + 0.05 * seed
            groups = {"head": low + 0.3, "mid": low, "tail": low - 0.2}
            write_run(
                root / f"{method}-s{seed}",
                method,
                seed,
                rounds=[
                    row
                    for measure in ("global", "personal", "global_local", "personal_selected")
                    for row in measured(measure, low, low + 0.1, **groups)
                ]
                + measured(AFTER, low + 0.2, start=3, **groups),
                spent=spent((1, 1.5, 2_000_000), (2, 3.0, 4_000_000), (3, 3.5, 5_000_000)),
                clients=of_clients(AFTER, 3, low, low + 0.4),
                classes=[*of_classes("global", 2, low, 0.2, 0.1), *of_classes(AFTER, 3, low + 0.1, 0.3, 0.2)],
                training=[
                    {"round": 1, "client": 0, "status": "accepted", "attacker": 1, "weight": 0.25},
                    {"round": 2, "client": 1, "status": "rejected", "reason": "</script><b>norm</b>"},
                ],
                samples=kept_pictures(right=3 if method == "fedavg" else 6),
                threats=[{"round": 1, "acc": low, "asr": 0.2}, {"round": 2, "acc": low, "asr": 0.1}],
                arrays={
                    "clusters-000001": [[0, 0], [1, 0]],
                    "clusters-000002": [[0, 0], [1, 1]],
                    "similarity-000002": [[0.0, 0.5], [0.5, 0.0]],
                    "similarity_clients-000002": [0, 1],
                    "plane-000002": [[0, -1.0, 0.5], [1, 1.0, -0.5]],
                    "plane_shares-000002": [0.8, 0.2],
                }
                if method == "mupfl"
                else {},
            )
    for seed in (0, 1):  # a third method, so that there are ranks
        write_run(root / f"local-s{seed}", "local", seed, rounds=measured(AFTER, 0.4, start=3))
    write_run(root / "slow", "fedper", 0, finished=False, rounds=measured("personal", 0.25))
    return root
