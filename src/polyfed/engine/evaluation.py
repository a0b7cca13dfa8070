"""Measuring a run: named numbers after a round and at its end, from confusion counts that clients return."""

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from polyfed import rng
from polyfed.data.samples import Samples
from polyfed.engine.asked import asked_between, asked_classes, test_sample
from polyfed.engine.oracle import oracle_numbers
from polyfed.engine.sample_masks import keep_samples
from polyfed.files import write_file
from polyfed.measure.counts import confusion, confusions
from polyfed.measure.metrics import Numbers, class_numbers, client_numbers, global_numbers

if TYPE_CHECKING:
    from polyfed.engine.rounds import Run

Tables = dict[int, np.ndarray]


class Evaluation:
    """What a run achieved, so far and in the end."""

    def __init__(self, run: "Run", groups: Mapping[str, list[int]]):
        self.run, self.groups, self.masks = run, groups, run.recorder.masks
        self.selected: Tables = {}  # PA_sel: counts the clients took right after their local procedure
        self._global: np.ndarray | None = None

    # ---- after a round

    def after_round(self, round: int) -> None:
        """GA, PA, GA_local and PA_sel of this round, into the records."""
        tables = self._clients("evaluate", round, self._measured_clients(round), self._measures(), self._test_global)
        run = self.run
        run.attacked.measure(round, self._measured_clients(round))
        tables = self._apart(tables)
        numbers = self._numbers(tables)
        self._record(round, tables, numbers)
        run.progress.last = numbers
        if "val" in tables:
            chosen = client_numbers(tables["val"], self.groups, self.masks)
            best = run.progress.best
            if chosen and (best is None or chosen["accuracy"] > best["val"]):
                run.progress.best = {"round": round, "val": chosen["accuracy"], **numbers}

    def _apart(self, tables: dict[str, Tables]) -> dict[str, Tables]:
        """Tables of honest clients; those of attackers' own models have a measure of their own."""
        if self.run.world.adversary is None or "personal" not in tables:
            return tables
        bad = self.run.world.adversary.attackers
        apart = {m: {k: t for k, t in each.items() if k not in bad} for m, each in tables.items()}
        return {**apart, "personal_attackers": {k: t for k, t in tables["personal"].items() if k in bad}}

    def clients(self, round: int, clients: Sequence[int], measures: tuple[str, ...]) -> dict[str, Tables]:
        """Ask some clients for measures, as after a round."""
        return self._clients("evaluate", round, clients, measures, None)

    def _numbers(self, tables: Mapping[str, Tables]) -> dict[str, Numbers | None]:
        found = {
            "global": global_numbers(self._global, self.groups, self.masks),
            "personal": client_numbers(tables["personal"], self.groups, self.masks),
            "global_local": client_numbers(tables.get("global", {}), self.groups, self.masks),
            "personal_selected": client_numbers(self.selected, self.groups, self.masks),
        }
        if "personal_attackers" in tables:
            found["personal_attackers"] = client_numbers(tables["personal_attackers"], self.groups, self.masks)
        return found

    def _record(self, round: int, tables: Mapping[str, Tables], numbers: Mapping[str, Numbers | None]) -> None:
        recorder = self.run.recorder
        with self.run.clock.phase("report"):
            everybody = {} if self._global is None else {-1: self._global}
            own = {**tables, "global_local": tables.get("global", {}), "personal_selected": self.selected}
            recorder.append("rounds", _rows(round, numbers, {**own, "global": everybody}))
            for measure, each in {**tables, "personal_selected": self.selected}.items():
                recorder.clients(round, {"global": "global_local"}.get(measure, measure), each)
            if self._global is not None:
                recorder.classes(round, "global", self._global)

    # ---- at the end

    def conclude(self) -> dict[str, Any]:
        """The summary: before and after finish, participants and held-out clients, PA_cls; written to disk."""
        run = self.run
        before = run.progress.last
        end = run.config.rounds + 1
        participants, heldout = run.roster.participants, list(run.world.federation.heldout)
        if self._global is None and run.method.has_global:
            self._test_global()
        asked = asked_classes(run)
        val = ("val",) if run.config.split.val else ()
        measures = ("personal", *val, *(("classes",) if asked is not None and run.method.personalises else ()))
        after = self._clients("evaluate", end, participants, measures, None, asked or 0)
        if asked is not None and not run.method.personalises:
            after |= self._classes_of_global(participants)
        after = self._apart(after)
        attackers = after.pop("personal_attackers", {})
        others = self._clients("evaluate", end, heldout, ("personal",), None) if heldout else {"personal": {}}
        unfinished = self._split_by_finish(after["personal"])[1]
        after, others = ({m: self._split_by_finish(t)[0] for m, t in tables.items()} for tables in (after, others))
        final = {"personal_final": after["personal"], "personal_unfinished": unfinished, "heldout": others["personal"]}
        final |= {"personal_attackers": attackers} if attackers else {}
        arrays = {**{f"final_{k}": v for k, v in after.items()}, "unfinished": unfinished, "heldout": final["heldout"]}
        with run.clock.phase("report"):
            self._record_final(end, final)
            self._write_counts(arrays)
            keep_samples(run)
            summary = self._summary(before, after, final)
            write_file(run.folder.summary, json.dumps(summary, indent=1).encode())  # with it the run is finished
        return summary

    def _record_final(self, end: int, final: Mapping[str, Tables]) -> None:
        recorder = self.run.recorder
        numbers = {measure: client_numbers(tables, self.groups, self.masks) for measure, tables in final.items()}
        recorder.append("rounds", _rows(end, numbers, final))
        for measure, tables in final.items():
            recorder.clients(end, measure, tables)

    def _split_by_finish(self, tables: Tables) -> tuple[Tables, Tables]:
        """Separate the tables of clients that finished from those of clients whose finish failed."""
        failed = self.run.progress.unfinished
        return {k: t for k, t in tables.items() if k not in failed}, {k: t for k, t in tables.items() if k in failed}

    def _summary(
        self, before: dict[str, Any], after: Mapping[str, Tables], final: Mapping[str, Tables]
    ) -> dict[str, Any]:
        run = self.run
        observed = {k: np.flatnonzero(c.counts or ()).tolist() for k, c in run.server.clients.items()}
        classes = class_numbers(after.get("classes", {}), observed, self.groups, self.masks)
        if classes is not None:
            masked = class_numbers(after["classes_masked"], observed, self.groups, self.masks)
            classes = {**classes, "masked": masked}  # type: ignore[dict-item]
        progress = run.progress
        threats = run.attacked.summary()
        return {
            "run": str(run.folder.path),
            "method": run.method.name,
            "seed": run.config.seed,
            "rounds": run.config.rounds,
            "clients": len(run.server.clients),
            "fingerprint": run.fingerprint(),
            "tested": {
                "global": len(run.world.federation.global_test),
                "global_between": asked_between(run) if run.method.has_global else 0,
                "personal_classes": max((int(t.sum()) for t in after.get("classes", {}).values()), default=0),
            },
            "global": before.get("global"),
            "personal": client_numbers(after["personal"], self.groups, self.masks),
            "personal_before": before.get("personal"),
            "personal_selected": before.get("personal_selected"),
            "personal_classes": classes,
            "global_local": before.get("global_local"),
            "personal_unfinished": client_numbers(final["personal_unfinished"], self.groups, self.masks),
            "heldout": client_numbers(final["heldout"], self.groups, self.masks),
            "validated": progress.best,
            "validation": client_numbers(after.get("val", {}), self.groups, self.masks),
            "oracle": oracle_numbers(run, self.groups) if run.config.eval.oracle else None,
            "untested": sum(1 for t in after["personal"].values() if not t.sum()),
            "unfinished": progress.unfinished,
            "bytes": progress.bytes,
            "seconds": {k: round(v, 4) for k, v in run.spent().items()},
            "phase_one": progress.phase_one,
            "rejected": progress.rejected,
            "failed": progress.failed,
            "excluded": progress.excluded,
            "lost": progress.lost,
            **run.ledger.summary(),
            "keeps": run.method.remembers(),
            "notes": run.world.federation.notes,
            "remarks": run.remarks(),
            **({} if threats is None else {"threats": threats}),
        }

    def _write_counts(self, tables: Mapping[str, Tables]) -> None:
        """Final counts as arrays."""
        arrays: dict[str, np.ndarray] = {}
        kind = np.int64 if self.masks else np.int32  # 500 masks may hold a thousand million pixels
        for name, each in tables.items():
            if each:
                arrays[f"{name}_clients"] = np.array(sorted(each))
                arrays[name] = np.stack([each[k] for k in sorted(each)]).astype(kind)
        if self._global is not None:
            arrays["global"] = self._global
        content = io.BytesIO()
        np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
        write_file(self.run.folder.place / "counts.npz", content.getvalue())

    # ---- measures

    def _measures(self) -> tuple[str, ...]:
        """What clients measure after a round; a method without a personal part answers with its global model."""
        run = self.run
        both = ("global",) if run.method.personalises and run.method.has_global else ()
        return ("personal", *both, *(("val",) if run.config.split.val else ()))

    def _clients(
        self,
        kind: str,
        round: int,
        clients: Sequence[int],
        measures: tuple[str, ...],
        meanwhile: Callable[[], None] | None,
        per_class: int = 0,
    ) -> dict[str, Tables]:
        """Tables by measure, from evaluation jobs."""
        found: dict[str, Tables] = {m: {} for m in measures}
        jobs = self.run.jobs(kind, round, clients, measures, per_class)
        downs = {job.client: job.down.nbytes for job in jobs}
        for outcome in self.run.run(jobs, meanwhile):
            self.run.progress.bytes["eval"] += downs[outcome.client]
            if outcome.error:
                self.run.say(f"client {outcome.client} could not be evaluated: {outcome.error}\n{outcome.trace}")
                failed = self.run.progress.failed
                failed["evaluation"] = failed.get("evaluation", 0) + 1
            for measure, table in outcome.counts.items():
                found.setdefault(measure, {})[outcome.client] = table
        if not self.run.method.personalises and self.run.method.has_global and "personal" in found:
            found["global"] = found["personal"]
        return {m: dict(sorted(t.items())) for m, t in found.items()}

    def _measured_clients(self, round: int) -> list[int]:
        """The clients measured after a round: all, or as many as `eval.clients` says, the same ones every time."""
        everybody = self.run.roster.participants
        count = self.run.config.eval.clients
        if count == "all" or count >= len(everybody):
            return everybody
        draw = rng.generator(self.run.config.seed, "evaluated")
        return sorted(int(k) for k in draw.choice(everybody, size=count, replace=False))

    def _test_global(self) -> None:
        world = self.run.world
        world.shared.begin(("evaluate", self.run.progress.round))
        model = self.run.method.global_predictor(self.run.server)
        last = self.run.progress.round == self.run.config.rounds
        test = world.federation.global_test if last else self._test_between
        if model is not None and len(test):
            batch = self.run.config.eval.batch
            self._global = confusion(model, test, world.federation.classes, batch, world.shared).numpy()
        world.resident.reset()

    @cached_property
    def _test_between(self) -> Samples:
        """What GA is measured on after every round but the last: the whole global test set, or a sample of it."""
        run, data = self.run, self.run.world.federation
        whole, asked = len(data.global_test), asked_between(run)
        if asked == whole:
            return data.global_test
        run.say(
            f"GA is measured on {asked} of the {whole} samples of the global test set after every round but the last, "
            "which takes all; eval.ga=all always does"
        )
        return test_sample(data, asked, run.config.seed)

    def _classes_of_global(self, clients: Sequence[int]) -> dict[str, Tables]:
        """Where all answer with one model, one pass over the test set serves everybody."""
        run = self.run
        model = run.method.global_predictor(run.server)
        if model is None:
            return {}
        data = run.world.federation
        own = [data.clients[k].counts.nonzero().flatten() for k in clients]
        batch, shared = run.config.eval.batch, run.world.shared
        plain, *masked = confusions(model, data.global_test, data.classes, batch, [None, *own], shared)
        run.world.resident.reset()
        tables = {k: plain.numpy() for k in clients}
        return {"classes": tables, "classes_masked": {k: m.numpy() for k, m in zip(clients, masked, strict=True)}}


def _rows(round: int, numbers: Mapping[str, Numbers | None], tables: Mapping[str, Tables]) -> Iterator[dict[str, Any]]:
    """The rows of the record: every measure with its numbers, and with how many samples they come from."""
    for measure, found in numbers.items():
        if found:
            samples = sum(int(table.sum()) for table in tables[measure].values())
            yield {"round": round, "measure": measure, "samples": samples, **found}
