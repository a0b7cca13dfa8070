"""DistFL by its equations, its schedules, who is placed where and when, and on the wire."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from riding import Ride, spoiling
from safetensors.torch import load_file
from torch import Tensor, nn

import polyfed
from polyfed.config import Train
from polyfed.data.samples import Samples
from polyfed.errors import UsageError
from polyfed.message import Memory, Message
from polyfed.methods.base import Client, Server, Task, Upload, methods
from polyfed.methods.distfl import DistFL
from polyfed.methods.sites import Known
from polyfed.models.base import Net
from polyfed.params import head
from polyfed.parts.dendrogram import divergences
from polyfed.parts.invert import activation_statistics
from polyfed.parts.membership import Clusters
from polyfed.parts.resident import Resident

Riding = Callable[..., Ride]
FEW = {"method.z": 12, "method.steps": 5}
ALL, NONE = 1e9, 1e-12  # thresholds: one cluster; nobody belongs together


def logged(run: Ride) -> str:
    return (run.result.path / "log.txt").read_text()


def arrays(run: Ride | Path, name: str) -> dict[int, np.ndarray]:
    """A recorded array by round."""
    path = run if isinstance(run, Path) else run.result.path
    return {int(f.stem[-6:]): np.load(f) for f in sorted((path / "arrays").glob(f"{name}-??????.npy"))}


def distfl(ride: Riding, **keys: Any) -> Ride:
    """DistFL clustered once, in the second round, unless the keys say otherwise."""
    once = {"method.warmup_rounds": 1, "method.recluster": "once"}
    return ride("distfl", **{"data": "skewed", "model": "mlp-bn", **once, **FEW} | keys)


# ---- without an engine


def with_norm() -> Net:
    trunk = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU())
    return Net(trunk, nn.Identity(), nn.Linear(6, 3))


def without_norm() -> Net:
    return Net(nn.Sequential(nn.Linear(4, 6), nn.ReLU()), nn.Identity(), nn.Linear(6, 3))


class Bench:
    """A server without an engine; uploads are made by hand: families of models that answer differently."""

    def __init__(self, method: DistFL, clients: int = 6, net: Callable[[], Net] = with_norm, rounds: int = 9):
        torch.manual_seed(0)
        self.method = method
        self.task = Task(classes=3, clients=clients, rounds=rounds, shape=(4,), train=Train())
        method.bind(self.task)
        self.resident = Resident(net)
        known = [Known(k, str(k), 10 + k, None) for k in range(clients)]
        self.server = Server(self.resident, self.task, known, "uniform", method.shared)
        self.server.round = 1
        method.start(self.server)

    @property
    def clusters(self) -> Clusters:
        return Clusters(self.server.state)

    def upload(self, id: int, family: int, noise: float = 0.01, boost: float = 1.0, **more: Tensor) -> Upload:
        """The model this client has, moved towards its family: the bias of one class is high."""
        params, draw = self.clusters.model(id).copy(), torch.Generator().manual_seed(id)
        move = noise * torch.randn(params.layout.size, generator=draw)
        move[params.layout.n_weights :].abs_()  # variances stay above 0
        _, end = params.layout.ranges(head)[0]
        move[end - 3 + family] += 3
        assert end == params.layout.n_weights
        message = Message(w=params.flat + boost * move, **more)
        if len(params.integers):
            message["w.integers"] = params.integers
        return Upload(id, 10 + id, message)

    def go(self, uploads: Sequence[Upload], round: int = 1) -> list[int]:
        self.server.round = round
        self.method.merge(self.server, uploads)
        return [self.clusters.of(k) for k in range(len(self.server.clients))]


def small(**given: Any) -> DistFL:
    return DistFL(**{"z": 20, "steps": 3, "warmup_rounds": 0, "recluster": "once"} | given)


FAMILIES = [0, 1, 2, 0, 1, 2]


def test_eqs_5_6_and_7_families_get_the_mean_of_their_models() -> None:
    bench = Bench(small())
    uploads = [bench.upload(k, f) for k, f in enumerate(FAMILIES)]
    assert bench.go(uploads) == [1, 2, 3, 1, 2, 3]
    for a, b in ((0, 3), (1, 4), (2, 5)):
        mean = (uploads[a].message.w + uploads[b].message.w) / 2  # eq. 7, uniform, buffers too
        assert torch.allclose(bench.clusters.model(a).flat, mean, atol=1e-6)
        assert bench.clusters.model(a) is bench.clusters.model(b)
    answers = []
    for upload in uploads:  # eq. 5
        bench.resident.params.flat.copy_(upload.message.w)
        logits = bench.resident.model.eval()(bench.server.state.inputs).detach().double()
        centred = logits - logits.mean(1, keepdim=True)
        answers.append((centred / (2 * centred.square().mean().sqrt())).softmax(1).clamp(min=1e-8))
    sim = bench.server.records["similarity"]
    assert np.allclose(sim, divergences(torch.stack(answers)).numpy(), atol=1e-9)  # eq. 6
    assert (np.diag(sim) == 0).all()
    assert bench.server.records["similarity_clients"].tolist() == list(range(6))
    assert bench.server.records["clusters"].tolist() == [1, 2, 3, 1, 2, 3]
    assert bench.server.said[0].startswith("3 clusters of 2, 2, 2 clients; best ratio ")
    assert torch.allclose(bench.server.state.responses, torch.stack(answers), atol=1e-9)  # for those who come later


def with_statistics(bench: Bench, id: int, family: int, **more: float) -> Upload:
    """All models answer alike, but a family's layers saw other inputs."""
    upload = bench.upload(id, 0, **more)
    upload.message.w[bench.server.shared.layout.n_weights :] += 3 * family
    return upload


def test_bn_statistics_group_models_that_answer_alike() -> None:
    bench = Bench(small(knowledge="bn"))
    uploads = [with_statistics(bench, k, f) for k, f in enumerate(FAMILIES)]
    assert bench.go(uploads) == [1, 2, 3, 1, 2, 3]
    assert "inputs" not in bench.server.state  # nothing is extracted
    late = Bench(small(knowledge="bn"), clients=7)
    late.go([with_statistics(late, k, f) for k, f in enumerate(FAMILIES)])
    after = late.go([with_statistics(late, 6, 1)], round=2)
    assert after[6] == after[1]
    with pytest.raises(UsageError, match=r"needs batch normalisation"):
        Bench(small(knowledge="bn"), net=without_norm)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the extraction is given; it gives back where it started."""
    seen: list[dict[str, Any]] = []

    def extract(model: Net, start: Tensor, knowledge: Any, steps: int, lr: float) -> Tensor:
        values = torch.cat([t.flatten() for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()])
        seen.append({"values": values, "start": start, "knowledge": knowledge, "steps": steps, "lr": lr})
        return start + 1

    monkeypatch.setattr("polyfed.methods.distfl.extract", extract)
    return seen


def test_eq_3_the_target_is_the_mean_of_the_uploads(watched: list[dict[str, Any]]) -> None:
    bench = Bench(small(lr=0.3, channel_ratio=0.5))
    uploads = [bench.upload(k, f) for k, f in enumerate(FAMILIES)]
    bench.go(uploads)
    (given,) = watched
    assert torch.allclose(given["values"], torch.stack([u.message.w for u in uploads]).mean(0), atol=1e-6)
    assert (given["steps"], given["lr"]) == (3, 0.3)
    assert given["start"].shape == (20, 4)
    (goal,) = given["knowledge"].values()
    assert len(goal.channels) == 3
    buffers = given["values"][bench.resident.layout.n_weights :]
    assert torch.equal(torch.cat([goal.mean, goal.var]), buffers)  # eq. 2 aims at its BN statistics


def test_the_first_model_can_be_the_target(watched: list[dict[str, Any]]) -> None:
    bench = Bench(small(target="client0"))
    uploads = [bench.upload(k, f) for k, f in enumerate(FAMILIES)]
    bench.go(uploads)
    assert torch.equal(watched[0]["values"], uploads[0].message.w)


def test_noise_is_fresh_every_round_unless_warm(watched: list[dict[str, Any]]) -> None:
    for warm in (False, True):
        watched.clear()
        bench = Bench(small(recluster="every", warm_start=warm))
        for round in (1, 2):
            bench.go([bench.upload(k, f) for k, f in enumerate(FAMILIES)], round)
        first, second = (seen["start"] for seen in watched)
        assert torch.equal(second, first + 1) == warm
        assert not torch.equal(first, second)


def test_a_boosted_upload_stays_out_of_the_pre_aggregate_but_is_clustered(watched: list[dict[str, Any]]) -> None:
    bench = Bench(small(), clients=7)
    uploads = [bench.upload(k, f) for k, f in enumerate([0, 1] * 3)]
    uploads.append(bench.upload(6, 2, boost=40.0))
    labels = bench.go(uploads)
    assert torch.allclose(watched[0]["values"], torch.stack([u.message.w for u in uploads[:6]]).mean(0), atol=1e-6)
    assert "1 uploads stay out of the pre-aggregate: their updates are too long" in bench.server.said
    assert bench.server.records["similarity"].shape == (7, 7)
    assert np.isfinite(bench.server.records["similarity"]).all()
    assert labels == [1, 2, 1, 2, 1, 2, 3]
    assert torch.allclose(bench.clusters.model(6).flat, uploads[6].message.w)
    allowed = Bench(small(pre_norm_gate=50), clients=7)
    allowed.go(uploads)
    assert not any("pre-aggregate" in line for line in allowed.server.said)


def test_updates_are_measured_from_each_clients_own_cluster_model(watched: list[dict[str, Any]]) -> None:
    """Clusters far from each other; all move equally little, so that all are in the pre-aggregate."""
    bench = Bench(small(recluster="every"))
    bench.go([bench.upload(k, f) for k, f in enumerate(FAMILIES)])
    far = bench.clusters.model(1).copy()
    far.weights.add_(50.0)
    bench.clusters[bench.clusters.of(1)] = far
    bench.server.said.clear()
    uploads = [bench.upload(k, f) for k, f in enumerate(FAMILIES)]
    bench.go(uploads, 2)
    assert not any("pre-aggregate" in line for line in bench.server.said)
    assert torch.allclose(watched[1]["values"], torch.stack([u.message.w for u in uploads]).mean(0), atol=1e-4)


def broken(bench: Bench, id: int) -> Upload:
    """Finite weights that give answers which are not."""
    upload = bench.upload(id, 0)
    begin, end = bench.resident.layout.ranges(head)[0]
    upload.message.w[begin:end] = 3e38
    return upload


def test_a_finite_upload_without_finite_answers_is_in_quarantine_with_the_model_it_had() -> None:
    bench = Bench(small(), clients=7)
    before = bench.server.shared.flat.clone()
    good = [bench.upload(k, f) for k, f in enumerate(FAMILIES)]
    labels = bench.go([*good, broken(bench, 6)])
    assert len({*labels[:6]}) == 3
    assert labels[6] not in labels[:6]
    assert torch.equal(bench.clusters.model(6).flat, before)
    assert "client 6 is in quarantine: its model gives no finite answers" in bench.server.said
    assert bench.server.records["similarity_clients"].tolist() == list(range(6))
    for k in range(6):
        assert bench.clusters.model(k).flat.abs().max() < 100
    later = bench.go([*good, broken(bench, 6)], 2)  # still broken: still alone with the old model
    assert torch.equal(bench.clusters.model(6).flat, before)
    assert later[6] not in later[:6]
    well = bench.upload(6, 1)
    well.message.w = bench.clusters.model(1).flat + 0.001
    assert bench.go([*good, well], 3)[6] == bench.clusters.of(1)  # well again: placed


def test_if_nobody_gives_finite_answers_everybody_keeps_what_it_had() -> None:
    bench = Bench(small(), clients=4)
    before = bench.server.shared.flat.clone()
    labels = bench.go([broken(bench, k) for k in range(4)])
    assert len(set(labels)) == 4
    assert all(torch.equal(bench.clusters.model(k).flat, before) for k in range(4))
    assert bench.server.state.clustered == 0
    families = [0, 1, 0, 1]
    assert bench.go([bench.upload(k, f) for k, f in enumerate(families)], 2)[:2] == [5, 6]


@pytest.mark.parametrize("recluster", ["once", "every"])
def test_the_partition_does_not_depend_on_the_clients_order(recluster: Any) -> None:
    order = [3, 5, 0, 2, 4, 1]
    found = []
    for families in (FAMILIES, [FAMILIES[k] for k in order]):
        bench = Bench(small(recluster=recluster))
        found.append(bench.go([bench.upload(k, f) for k, f in enumerate(families)]))
    turned = [found[0][k] for k in order]
    assert len(set(zip(turned, found[1], strict=True))) == 3


def test_softness_0_is_the_plain_softmax() -> None:
    bench = Bench(small(softness=0))
    uploads = [bench.upload(k, f) for k, f in enumerate(FAMILIES)]
    bench.go(uploads)
    bench.resident.params.flat.copy_(uploads[4].message.w)
    logits = bench.resident.model.eval()(bench.server.state.inputs).detach().double()
    assert torch.allclose(bench.server.state.responses[4], logits.softmax(1), atol=1e-9)


def test_how_sure_a_model_is_does_not_count_unless_responses_are_plain() -> None:
    """The same answers ten times as loud."""
    bench = Bench(small(), clients=4)
    uploads = [bench.upload(k, 0, noise=0.0) for k in range(4)]
    begin, end = bench.resident.layout.ranges(head)[0]
    uploads[3].message.w[begin:end] *= 10
    bench.go(uploads)
    assert bench.server.records["similarity"].max() < 1e-9
    plain = Bench(small(softness=0), clients=4)
    plain.go(uploads)
    assert plain.server.records["similarity"][3, :3].min() > 0.01


def test_the_least_ratio_is_passed_on() -> None:
    bench = Bench(small(min_ratio=1e12))
    assert set(bench.go([bench.upload(k, f) for k, f in enumerate(FAMILIES)])) == {0}
    assert bench.server.said[0].startswith("one cluster: this is FedAvg; best ratio ")


def test_linkage_and_threshold_are_passed_on() -> None:
    bench = Bench(small(threshold=NONE))
    assert len(set(bench.go([bench.upload(k, 0) for k in range(6)]))) == 6
    bench = Bench(small(threshold=ALL, linkage="greedy"))
    assert set(bench.go([bench.upload(k, f) for k, f in enumerate(FAMILIES)])) == {0}


# ---- who was not there


def test_absent_clients_keep_their_model_and_are_placed_at_their_next_upload() -> None:
    bench = Bench(small(), clients=8)
    before = bench.server.shared.flat.clone()
    families = [0, 1, 0, 1, 0, 1, 0, 2]
    labels = bench.go([bench.upload(k, families[k]) for k in range(6)])
    assert labels == [1, 2, 1, 2, 1, 2, 0, 0]
    assert torch.equal(bench.clusters.model(6).flat, before)
    assert bench.server.state.placed.tolist() == [1] * 6 + [0] * 2
    late = [bench.upload(6, 0), bench.upload(7, 2)]  # trained from the model of before the clustering
    labels = bench.go([bench.upload(0, 0, noise=0.0), *late], 2)
    assert labels == [1, 2, 1, 2, 1, 2, 1, 3]  # 6 is near the first cluster, 7 near none
    assert torch.equal(bench.clusters.model(7).flat, late[1].message.w)
    assert bench.server.state.placed.tolist() == [1] * 8
    assert not any(n in bench.server.state for n in ("model_0",))  # nobody has it any more


def test_a_late_client_joins_the_nearest_of_several_near_clusters() -> None:
    for family in (0, 1):
        bench = Bench(small(), clients=5)
        bench.go([bench.upload(k, f) for k, f in enumerate([0, 1, 0, 1])])
        bench.server.state.threshold = ALL  # both are near
        assert bench.go([bench.upload(4, family)], 2)[4] == 1 + family


def test_a_late_client_is_measured_against_members_not_against_their_mean() -> None:
    """The cluster's model moves on; what its members answered when they were clustered stays."""
    bench = Bench(small(), clients=5)
    bench.go([bench.upload(k, f) for k, f in enumerate([0, 1, 0, 1])])
    for k in (0, 2):
        bench.clusters[bench.clusters.of(k)] = bench.clusters.model(1)  # as if it were the other's
    late = bench.upload(4, 0, noise=0.0)
    assert bench.go([late], 2)[4] == bench.clusters.of(0) != bench.clusters.of(1)
    assert torch.allclose(bench.clusters.model(4).flat, late.message.w)


def test_a_late_client_becomes_a_member_for_the_next() -> None:
    bench = Bench(small(), clients=6)
    bench.go([bench.upload(k, f) for k, f in enumerate([0, 1, 0, 1])])
    labels = bench.go([bench.upload(4, 2), bench.upload(5, 2)], 2)  # a third family
    assert labels[4] == labels[5] not in labels[:4]


def test_a_late_client_is_averaged_with_the_cluster_it_joins() -> None:
    bench = Bench(small(), clients=5)
    bench.go([bench.upload(k, f) for k, f in enumerate([0, 1, 0, 1])])
    one, late = bench.upload(0, 0, noise=0.0), bench.upload(4, 0)
    bench.go([one, late], 2)
    assert torch.allclose(bench.clusters.model(0).flat, (one.message.w + late.message.w) / 2, atol=1e-6)


def test_a_late_client_whose_answers_are_not_finite_is_left_alone() -> None:
    bench = Bench(small(), clients=5)
    bench.go([bench.upload(k, f) for k, f in enumerate([0, 1, 0, 1])])
    models = [bench.clusters.model(k).flat.clone() for k in range(5)]
    bench.go([broken(bench, 4)], 2)
    assert all(torch.equal(bench.clusters.model(k).flat, models[k]) for k in range(5))
    assert bench.server.state.placed[4] == 0


def test_a_lone_upload_is_not_clustered() -> None:
    bench = Bench(small(), clients=4)
    assert bench.go([bench.upload(0, 0)]) == [0] * 4
    assert bench.server.state.clustered == 0
    assert "similarity" not in bench.server.records
    assert bench.go([bench.upload(k, k % 2) for k in range(4)], 2) == [1, 2, 1, 2]
    every = Bench(small(recluster="every"), clients=5)
    every.go([every.upload(k, k % 2) for k in range(4)])
    assert every.go([every.upload(4, 1)], 2)[4] == 2  # placed instead


def test_clustering_in_the_last_round_when_there_is_no_later_one() -> None:
    bench = Bench(small(warmup_rounds=5), rounds=3)
    for round in (1, 2):
        assert set(bench.go([bench.upload(k, f) for k, f in enumerate(FAMILIES)], round)) == {0}
    assert not bench.server.said
    assert len(set(bench.go([bench.upload(k, f) for k, f in enumerate(FAMILIES)], 3))) == 3
    assert bench.server.said[0] == "warmup_rounds=5 leaves no round: clustered in the last one"


# ---- schedules, in runs


@pytest.mark.parametrize(
    ("keys", "clustered"),
    [
        ({"method.recluster": "once"}, [2]),
        ({"method.recluster": "every"}, [2, 3, 4, 5]),
        ({"method.recluster": "until_stable", "method.threshold": NONE}, [2, 3]),  # the same twice
        ({"method.recluster": "until_stable", "method.threshold": ALL, "method.warmup_rounds": 0}, [1, 2, 3, 4, 5]),
        ({"method.recluster": "until_stable", "method.threshold": ALL, "rounds": 7}, [2, 3, 4, 5, 6]),  # five times one
        ({"method.recluster": "once", "method.warmup_rounds": 0}, [1]),
        ({"method.recluster": "once", "method.warmup_rounds": 4}, [5]),
        ({"method.recluster": "every", "method.warmup_rounds": 9}, [5]),
    ],
)
def test_when_clusters_are_made(ride: Riding, keys: dict[str, Any], clustered: list[int]) -> None:
    run = distfl(ride, **{"rounds": 5} | keys)
    assert list(arrays(run, "similarity")) == clustered
    assert list(arrays(run, "clusters")) == list(range(1, keys.get("rounds", 5) + 1))
    assert logged(run).count("; threshold ") == len(clustered)
    if keys.get("method.threshold") == ALL:
        assert logged(run).count("one cluster: this is FedAvg") == len(clustered)
    assert ("leaves no round" in logged(run)) == (keys.get("method.warmup_rounds") == 9)


PAPER = {
    "z": 200,
    "channel_ratio": 0.5,
    "abs_gamma": False,
    "steps": 2000,
    "lr": 0.1,
    "warm_start": False,
    "softness": 0.0,
    "threshold": "auto",
    "min_ratio": 2.5,
    "linkage": "components",
    "warmup_rounds": 0,
    "recluster": "every",
    "knowledge": "responses",
    "target": "preaggregate",
    "pre_norm_gate": 10.0,
    "no_bn": "stats",
}
OFFICIAL = PAPER | {"threshold": 0.2, "warmup_rounds": 5, "recluster": "once"}
OURS = PAPER | {"z": 100, "steps": 100, "softness": 2.0, "linkage": "average"}
OURS |= {"warmup_rounds": 1, "recluster": "until_stable"}


@pytest.mark.parametrize(
    ("name", "expected"), [("distfl", OURS), ("distfl-paper", PAPER), ("distfl-official", OFFICIAL)]
)
def test_every_parameter_of_the_method_and_its_presets(name: str, expected: dict[str, Any]) -> None:
    made = methods.build(name, "method")
    assert made.dump() == {"name": name, **expected}
    assert made.weighting == "uniform"


@pytest.mark.parametrize(("name", "expected"), [("distfl-paper", PAPER), ("distfl-official", OFFICIAL)])
def test_a_changed_default_changes_no_preset(name: str, expected: dict[str, Any]) -> None:
    """What a preset does not pin would have no default of its own."""
    preset = methods.get(name)
    assert set(preset.__annotations__) == set(expected) == set(DistFL.model_fields)
    assert preset(z=7).z == 7  # its keys can be set all the same
    with pytest.raises(UsageError, match=r"^'method.z': input should be greater than or equal to 1"):
        methods.build({"name": name, "z": 0}, "method")


# ---- identities


@pytest.mark.parametrize("recluster", ["once", "every"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_one_cluster_is_fedavg_bit_for_bit(ride: Riding, recluster: str, participation: float) -> None:
    same: dict[str, Any] = {"participation": participation, "rounds": 4}
    plain = ride("fedavg", data="skewed", model="mlp-bn", weighting="uniform", **same)
    one = distfl(ride, **same | {"method.threshold": ALL, "method.recluster": recluster})
    for mine, theirs in zip(one.of("train"), plain.of("train"), strict=True):
        assert torch.equal(mine.down.w, theirs.down.w)
        assert torch.equal(mine.up.w, theirs.up.w)
    assert one.params.digest() == plain.params.digest()
    assert one.result["personal"] == plain.result["personal"]


def test_all_singletons_are_local_training_and_say_so(ride: Riding) -> None:
    run = distfl(ride, **{"method.threshold": NONE})
    assert "every client is a cluster of its own: this is local training" in logged(run)
    for k in range(4):
        assert torch.equal(run.train(3, k).down.w, run.train(2, k).up.w)
    assert len(set(arrays(run, "clusters")[2])) == 4


# ---- on the wire


def test_the_wire_of_a_model_with_bn(ride: Riding) -> None:
    run = distfl(ride, **{"method.recluster": "every"})
    size = 4 * run.layout.size + 8 * run.layout.n_integers
    for seen in run.of("train"):
        assert set(seen.down) == set(seen.up) == {"w", "w.integers"}
        assert seen.down.nbytes == seen.up.nbytes == size
        assert seen.after is None  # nothing is kept


def test_everybody_is_sent_its_own_clusters_model_by_value(ride: Riding) -> None:
    run = distfl(ride, rounds=4, **{"method.threshold": 0.055})
    for round in (2, 3):
        numbers = arrays(run, "clusters")[round]
        for k in range(4):
            mates = [j for j in range(4) if numbers[j] == numbers[k]]
            mean = torch.stack([run.train(round, j).up.w for j in mates]).mean(0)
            assert torch.allclose(run.train(round + 1, k).down.w, mean, atol=1e-6)
    assert 1 < len(set(arrays(run, "clusters")[3])) < 4  # so that it was worth looking


def test_statistics_go_up_when_they_are_asked_for_and_only_then(ride: Riding) -> None:
    run = distfl(ride, model="mlp", rounds=4)
    channels = 2 * 10 + 5  # two hidden layers and the head
    for seen in run.of("train"):
        due = seen.round == 2
        assert ("ask" in seen.down) == ("statistics" in seen.up) == due
        assert seen.down.nbytes == 4 * run.layout.size + 8 * due
        assert seen.up.nbytes == 4 * run.layout.size + 4 * 2 * channels * due
    assert list(arrays(run, "similarity")) == [2]
    seen = run.train(2, 1)
    run.world.resident.reset()
    run.world.resident.params.flat.copy_(seen.up.w)
    own = activation_statistics(run.world.resident.model, run.world.federation.clients[1].train)
    assert torch.allclose(seen.up.statistics, own, atol=1e-5)  # of the trained model


@pytest.mark.parametrize("recluster", ["once", "every", "until_stable"])
def test_who_is_asked_is_clustered_also_when_few_take_part(ride: Riding, recluster: str) -> None:
    run = distfl(
        ride, model="mlp", rounds=6, participation=0.5, **{"method.recluster": recluster, "method.threshold": 0.1}
    )
    for round in range(1, 7):
        asked = {"ask" in s.down for s in run.of("train") if s.round == round}
        assert asked == {round in arrays(run, "similarity")}
        for s in run.of("train"):
            assert ("ask" in s.down) == ("statistics" in s.up)
    assert run.result["rejected"] == {}


def test_a_model_without_bn_on_noise_or_refused(ride: Riding) -> None:
    run = distfl(ride, model="mlp", **{"method.no_bn": "noise"})
    assert all("ask" not in s.down and "statistics" not in s.up for s in run.of("train"))
    assert "clustered on noise" not in logged(run)  # it was asked for
    with pytest.raises(UsageError, match=r"^distfl needs batch normalisation in the model, or method.no_bn=stats"):
        distfl(ride, model="mlp", **{"method.no_bn": "error"})
    with pytest.raises(UsageError, match=r"^distfl reads the statistics of batch normalisation: leave out buffers=loc"):
        distfl(ride, buffers="local")


def test_without_bn_the_goal_is_the_mean_of_the_trusted_statistics(watched: list[dict[str, Any]]) -> None:
    bench = Bench(small(), net=without_norm, clients=7)
    sent = [torch.rand(2, 9, generator=torch.Generator().manual_seed(k)) for k in range(7)]
    sent[2] = torch.rand(2, 5)  # of another size
    uploads = [bench.upload(k, f, statistics=sent[k]) for k, f in enumerate(FAMILIES)]
    uploads.append(bench.upload(6, 0, boost=40.0, statistics=sent[6]))
    bench.go(uploads)
    first, second = watched[0]["knowledge"].values()
    expected = torch.stack([sent[k] for k in (0, 1, 3, 4, 5)]).mean(0)
    assert torch.allclose(torch.stack([first.mean, first.var]), expected[:, :6])
    assert torch.allclose(torch.stack([second.mean, second.var]), expected[:, 6:])
    nothing = Bench(small(), net=without_norm)
    nothing.go([nothing.upload(k, f) for k, f in enumerate(FAMILIES)])
    assert watched[-1]["knowledge"] == {}
    assert "no upload has usable activation statistics: clustered on noise" in nothing.server.said


def test_statistics_of_the_batch_alone_are_no_knowledge(ride: Riding) -> None:
    run = distfl(ride, **{"model.bn_running_stats": False})
    assert "statistics" in run.train(2, 0).up
    assert run.result["failed"] == {}


def test_a_client_takes_its_statistics_in_eval_mode() -> None:
    bench = Bench(small(), net=without_norm)
    x, y = torch.randn(7, 4), torch.arange(7) % 3
    received = Message(w=bench.server.shared, ask=1)
    client = Client(0, bench.resident, bench.task, 1, Samples.of(x, y), torch.bincount(y), received, Memory())
    up = bench.method.train(client)
    assert torch.allclose(up.statistics[0, -3:], client.model(x).mean(0), atol=1e-5)


# ---- rejected, held out, resumed


def test_a_rejected_client_keeps_its_model_and_is_placed_later(ride: Riding) -> None:
    spoilt = spoiling(DistFL, who=1, when=2)
    keys = {"method.warmup_rounds": 1, "method.threshold": ALL, **FEW}
    run = ride(spoilt, data="skewed", model="mlp-bn", rounds=4, **keys)
    assert run.result["rejected"] == {"nonfinite": 1}
    assert arrays(run, "similarity_clients")[2].tolist() == [0, 2, 3]
    two = ride(spoilt, data="skewed", model="mlp-bn", rounds=4, **keys | {"method.threshold": NONE})
    assert torch.equal(two.train(3, 1).down.w, two.train(2, 1).down.w)  # what it had
    assert not torch.equal(two.train(3, 0).down.w, two.train(2, 0).down.w)
    assert torch.equal(two.train(4, 1).down.w, two.train(3, 1).up.w)  # placed: alone
    assert torch.isfinite(two.params.flat).all()


def test_held_out_clients_have_the_model_of_before_the_clustering_or_the_only_one(ride: Riding) -> None:
    split = {"split.heldout": 1, "rounds": 4}
    apart = distfl(ride, **split | {"method.threshold": NONE})
    (never,) = {0, 1, 2, 3} - {s.client for s in apart.of("train")}
    someone = apart.of("train")[0].client
    final = next(s for s in apart.of("evaluate") if s.client == never)
    assert torch.equal(final.down.w, apart.train(2, someone).down.w)
    together = distfl(ride, **split | {"method.threshold": ALL})
    final = next(s for s in together.of("evaluate") if s.client == never)
    assert torch.equal(final.down.w, together.params.flat)
    assert together.result["heldout"] is not None


def test_there_is_no_global_model_but_every_client_is_measured(ride: Riding) -> None:
    run = distfl(ride, **{"eval.classes": True})
    assert not DistFL().has_global
    assert DistFL().personalises
    assert run.result["global"] is None
    assert run.result["personal_classes"] is not None


GROUPS = {
    "method.name": "distfl",
    "data": "digits",
    "split.partition": "groups",
    "split.clients": 10,
    "model.name": "cnn-bn",
    "model.width": 0.25,
    "train.batch": 16,
    "engine.workers": 0,
    "eval.every": 1000,
    "eval.classes": False,
}


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"participation": 0.5, "method.recluster": "every"},
        {"participation": 0.6, "method.recluster": "once"},  # most of those who were absent come later
    ],
)
def test_a_run_resumed_in_the_middle_ends_alike(tmp_path: Path, keys: dict[str, Any]) -> None:
    few = {"data.limit": 30, "model.name": "mlp-bn", "model.width": 0.05, "rounds": 4, "method.warmup_rounds": 1}
    whole = polyfed.run(GROUPS | few | FEW | keys | {"checkpoint.keep": 99}, out=tmp_path / "whole")
    for after in (1, 2, 3):
        cut = tmp_path / f"cut-{after}"
        shutil.copytree(whole.path, cut)
        (cut / "summary.json").unlink()
        for later in (cut / "checkpoints").glob("at-*"):
            if later.name > f"at-{after:06d}":
                shutil.rmtree(later)
        again = polyfed.resume(cut)
        assert again.fingerprint == whole.fingerprint
        assert arrays(cut, "clusters")[4].tolist() == arrays(whole.path, "clusters")[4].tolist()


# ---- real inputs


def test_the_five_types_of_digits_are_found_exactly(tmp_path: Path) -> None:
    """DistFL's category imbalance in small: ten clients of five types, clustered in the second and third round."""
    keys = {"rounds": 4, "method.z": 50, "method.steps": 50}
    result = polyfed.run(GROUPS | keys, out=tmp_path / "run")
    found = arrays(tmp_path / "run", "clusters")
    assert found[1].tolist() == [0] * 10
    assert all(found[round].tolist() == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5] for round in (2, 3, 4))
    assert list(arrays(tmp_path / "run", "similarity")) == [2, 3]  # the same twice
    sim = arrays(tmp_path / "run", "similarity")[2]
    types = np.repeat(np.arange(5), 2)
    inside = sim[(types[:, None] == types) & ~np.eye(10, dtype=bool)]
    assert sim[types[:, None] != types].min() / inside.max() > 2.5
    assert result["personal.accuracy"] > 0.9


@pytest.mark.parametrize(("model", "shape"), [("har-cnn", (2, 40)), ("mlp-bn", (12,)), ("mlp", (2, 5))])
def test_sequences_and_vectors(tmp_path: Path, model: str, shape: tuple[int, ...]) -> None:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(60, *shape)).astype(np.float32), np.arange(60) % 3
    run = {"data": (x, y), "method": "distfl", "model": {"name": model, "width": 0.2}, "engine.workers": 0}
    split = {"split.partition": "iid", "split.clients": 4, "rounds": 2, "method.warmup_rounds": 1, "train.batch": 8}
    result = polyfed.run(run, split, FEW, out=tmp_path / "run")
    assert result["failed"] == result["rejected"] == {}
    assert arrays(tmp_path / "run", "similarity")[2].shape == (4, 4)
    newest = sorted((tmp_path / "run" / "checkpoints").glob("at-*/server.safetensors"))[-1]
    assert load_file(newest)["state.inputs"].shape == (12, *shape)
