"""ACMU's own parameters, one by one: the share of the maps, the metric, the bounds of kappa, the seed; its records."""

from typing import Any

import pytest
import torch
from bench import Bench
from torch import Tensor

from polyfed.methods import cluster_updates
from polyfed.methods.mupfl import MuPFL
from polyfed.params import head
from polyfed.parts.cluster import Grouping

BY_UPDATE, BY_MAP = [[0, 1], [2, 3]], [[0, 2], [1, 3]]
MAPS = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])


def merged(bench: Bench, moves: Tensor, **sent: Any) -> None:
    """One merge of clients that moved so from the shared model; `sent` are further fields, a row for each."""
    start = bench.server.shared.flat
    uploads = [bench.upload(k, w=start + m, **{n: v[k] for n, v in sent.items()}) for k, m in enumerate(moves)]
    bench.method.merge(bench.server, uploads)


def paired_moves(bench: Bench) -> Tensor:
    """The first two clients move one way, the other two another, at right angles."""
    moves = torch.zeros(4, len(bench.server.shared.flat))
    moves[:2, ::2], moves[2:, 1::2] = 1, 1
    return moves


def members(bench: Bench) -> list[list[int]]:
    return sorted(Grouping(bench.server.records["clusters"][:, 1].tolist()).members())


@pytest.mark.parametrize(("alpha", "found"), [(0.8, BY_UPDATE), (0.2, BY_MAP)])
def test_alpha_is_the_share_of_the_updates(alpha: float, found: list[list[int]]) -> None:
    bench = Bench(MuPFL(pkcf=False, alpha=alpha, kappa=2))
    merged(bench, paired_moves(bench), map=MAPS)
    assert members(bench) == found


@pytest.mark.parametrize(("metric", "found"), [("cosine", BY_UPDATE), ("weights", BY_MAP)])
def test_weights_are_the_trained_models_not_their_updates(metric: Any, found: list[list[int]]) -> None:
    """Clients 0 and 2 end near each other because their heads began there, though they moved apart."""
    bench = Bench(MuPFL(bavd=False, m=2, match_steps=1, metric=metric, kappa=2))
    (begin, end), moves = bench.resident.layout.ranges(head)[0], paired_moves(bench)
    heads = torch.tensor([50.0, -50, 50, -50])[:, None].expand(4, end - begin)
    ends = moves.clone()
    ends[:, begin:end] += heads - bench.server.shared.flat[begin:end]
    nothing = {"z": torch.zeros(4, 1, 2, 5), "classes": torch.zeros(4, 1, dtype=torch.int64)}
    merged(bench, ends, start_head=heads, **nothing)
    assert members(bench) == found


@pytest.mark.parametrize(("bounds", "tried"), [((3, 4), [3, 4]), ((2, 6), [2, 3, 4, 5, 6]), ((5, 7), [5, 6, 7])])
def test_the_bounds_of_kappa_are_those_that_are_tried(bounds: tuple[int, int], tried: list[int]) -> None:
    bench = Bench(MuPFL(bavd=False, pkcf=False, kappa_min=bounds[0], kappa_max=bounds[1]), clients=9)
    merged(bench, torch.randn(9, len(bench.server.shared.flat), generator=torch.Generator().manual_seed(0)))
    assert bench.server.records["silhouette"][:, 0].tolist() == tried


def test_k_means_is_seeded_by_the_run_and_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = []
    real = cluster_updates.group
    monkeypatch.setattr(cluster_updates, "group", lambda *given: seeds.append(given[-1]) or real(*given))
    for round in (1, 2, 2):
        bench = Bench(MuPFL(bavd=False, pkcf=False))
        bench.server.round = round
        merged(bench, paired_moves(bench))
    assert seeds[0] != seeds[1] == seeds[2]


def test_the_spread_of_both_terms_is_recorded() -> None:
    """Smallest, mean, largest and standard deviation of six pairs: first of the updates, then of the maps."""
    bench = Bench(MuPFL(pkcf=False))
    merged(bench, paired_moves(bench), map=MAPS)
    third = [0, 1 / 3, 1, (2 / 9) ** 0.5]  # two pairs alike, four at right angles
    assert bench.server.records["cosines"] == pytest.approx(torch.tensor([third, third]).numpy(), abs=1e-6)
    alike = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0], [1.0, 1.0]])
    merged(bench, paired_moves(bench), map=alike)
    updates, maps = bench.server.records["cosines"].tolist()
    assert updates == pytest.approx(third, abs=1e-6)
    root = 0.5**0.5
    assert maps[:3] == pytest.approx([root, (2 + 4 * root) / 6, 1])


def test_without_maps_only_the_updates_have_a_spread() -> None:
    bench = Bench(MuPFL(bavd=False, pkcf=False))
    merged(bench, paired_moves(bench))
    assert bench.server.records["cosines"].shape == (1, 4)
    merged(bench, paired_moves(bench)[:1])
    assert bench.server.records["cosines"].size == 0  # a single client is compared with nobody
