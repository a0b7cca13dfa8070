"""Columns that show the accuracy of a part of the clients: a type, a domain, one of them."""

from pathlib import Path

import numpy as np
import pytest
from tiny_paper import TINY, item, room

from polyfed.measure.watch import Silent
from polyfed.papers.cell import cells_of
from polyfed.papers.reproduce import Wish, reproduce
from polyfed.papers.sources import sources_of
from polyfed.papers.store import Store

PARTS = TINY.replace(
    "{GA: global.accuracy, PA: personal.accuracy}", '{PA: personal.accuracy, one: "part:1/3", both: "part:2/2"}'
)
PARTS = PARTS.split("table2:")[0].replace("reads: {GA: personal.accuracy}", "control: true").split("  printed:")[0]
PARTS += """    "K-Cluster": {keys: {method: {name: k-cluster, k: 2}}}
    DistFL: {keys: {method: distfl, model.name: mlp-bn}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    given = item(room(folder / "recipes", PARTS))
    reproduce([given], Wish(seeds=1, only="alpha 1", who={"jobs": 1}), Store(folder / "store"), folder, Silent())
    return folder


@pytest.mark.parametrize("row", ["FedAvg, tuned", "FedPer"])
def test_a_part_is_the_mean_of_its_clients_by_round_and_at_the_end(folder: Path, row: str) -> None:
    """Three clients: the first third is the first client, and the second half is the third."""
    import pandas

    given = item(folder / "recipes")
    store = Store.open(folder / "store")
    (cell,) = cells_of(given, "cpu", 1, "alpha 1", row)
    stored = store.current(cell)
    assert stored is not None
    (run,) = (folder / "tiny.table1-cpu").glob(f"*{row.split(', ')[-1].lower()}*-s0")
    clients = pandas.read_csv(run / "clients.csv")
    for path, client in (("part:1/3", 0), ("part:2/2", 2)):
        mine = clients[clients["client"] == client]
        curve = mine[mine["measure"] == "personal"].set_index("round")["accuracy"]
        assert dict(stored.curve(path)) == pytest.approx(curve.to_dict(), abs=1e-6)
        (end,) = mine[mine["measure"] == "personal_final"]["accuracy"]
        assert stored.last(path) == pytest.approx(end, abs=1e-6)


@pytest.mark.parametrize(("row", "made"), [("K-Cluster", True), ("DistFL", True), ("FedPer", False)])
def test_the_number_of_clusters_after_the_last_round_is_kept(folder: Path, row: str, made: bool) -> None:
    """K-Cluster records pairs of client and cluster, DistFL a cluster for every client."""
    (cell,) = cells_of(item(folder / "recipes"), "cpu", 1, "alpha 1", row)
    stored = Store.open(folder / "store").current(cell)
    assert stored is not None
    (run,) = (folder / "tiny.table1-cpu").glob(f"*.{row.lower()}.*-s0")
    arrays = sorted((run / "arrays").glob("clusters-*.npy"))
    assert bool(arrays) == made
    clusters = np.load(arrays[-1]).reshape(3, -1)[:, -1] if made else None
    assert stored.last("clusters") == (None if clusters is None else len(set(clusters.tolist())))


def test_clusters_are_kept_where_everybody_has_one(folder: Path) -> None:
    cells = {cell.row: cell for cell in cells_of(item(folder / "recipes"), "cpu", 1, "alpha 1")}
    store = Store.open(folder / "store")
    kept = {row: store.by_identity[cell.identity, sources_of(cell)][0].kept for row, cell in cells.items()}
    assert len(kept["K-Cluster"]["clusters"]) == 3
    assert set(kept["K-Cluster"]["clusters"]) <= {0, 1}
    assert kept["FedPer"] == {}
