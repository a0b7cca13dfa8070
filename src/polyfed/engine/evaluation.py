"""Measuring a run: named numbers after a round and at its end, from confusion counts that clients return."""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from polyfed import rng
from polyfed.engine.memory import write_file
from polyfed.measure.counts import confusion, confusions
from polyfed.measure.metrics import Numbers, class_numbers, client_numbers, global_numbers

if TYPE_CHECKING:
    from polyfed.engine.rounds import Run

Tables = dict[int, np.ndarray]
FEW = 1_000_000  # forward passes PA_cls may cost under eval.classes=auto


class Evaluation:
    """What a run achieved, so far and in the end."""

    def __init__(self, run: "Run", groups: Mapping[str, list[int]]):
        self.run, self.groups = run, groups
        self.selected: Tables = {}  # PA_sel: counts the clients took right after their local procedure
        self._global: np.ndarray | None = None

    # ---- after a round

    def after_round(self, round: int) -> None:
        """GA, PA, GA_local and PA_sel of this round, into the records."""
        tables = self._clients("evaluate", round, self._some(round), self._measures(), self._test_global)
        numbers = self._numbers(tables)
        self._record(round, tables, numbers)
        run = self.run
        run.progress.last = numbers
        if "val" in tables:
            chosen = client_numbers(tables["val"], self.groups)
            best = run.progress.best
            if chosen and (best is None or chosen["accuracy"] > best["val"]):
                run.progress.best = {"round": round, "val": chosen["accuracy"], **numbers}

    def _numbers(self, tables: Mapping[str, Tables]) -> dict[str, Numbers | None]:
        return {
            "global": global_numbers(self._global, self.groups),
            "personal": client_numbers(tables["personal"], self.groups),
            "global_local": client_numbers(tables.get("global", {}), self.groups),
            "personal_selected": client_numbers(self.selected, self.groups),
        }

    def _record(self, round: int, tables: Mapping[str, Tables], numbers: Mapping[str, Numbers | None]) -> None:
        recorder = self.run.recorder
        recorder.append("rounds", [{"round": round, "measure": m, **n} for m, n in numbers.items() if n])
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
        participants, heldout = list(run.world.federation.participants), list(run.world.federation.heldout)
        if self._global is None and run.method.has_global:
            self._test_global()
        measures = ("personal", *(("classes",) if self._asks_classes() and run.method.personalises else ()))
        after = self._clients("evaluate", end, participants, measures, None)
        if self._asks_classes() and not run.method.personalises:
            after |= self._classes_of_global(participants)
        others = self._clients("evaluate", end, heldout, ("personal",), None) if heldout else {"personal": {}}
        final = {"personal_final": after["personal"], "heldout": others["personal"]}
        run.recorder.append(
            "rounds",
            [{"round": end, "measure": m, **n} for m, t in final.items() if (n := client_numbers(t, self.groups))],
        )
        for measure, tables in final.items():
            run.recorder.clients(end, measure, tables)
        summary = self._summary(before, after, others["personal"])
        self._write(summary, {**{f"final_{k}": v for k, v in after.items()}, "heldout": others["personal"]})
        return summary

    def _summary(self, before: dict[str, Any], after: Mapping[str, Tables], heldout: Tables) -> dict[str, Any]:
        run = self.run
        observed = {k: np.flatnonzero(c.counts or ()).tolist() for k, c in run.server.clients.items()}
        classes = class_numbers(after.get("classes", {}), observed, self.groups)
        if classes is not None:
            masked = class_numbers(after["classes_masked"], observed, self.groups)
            classes = {**classes, "masked": masked}  # type: ignore[dict-item]
        progress = run.progress
        return {
            "run": str(run.folder.path),
            "method": run.method.name,
            "seed": run.config.seed,
            "rounds": run.config.rounds,
            "clients": len(run.server.clients),
            "fingerprint": run.fingerprint(),
            "global": before.get("global"),
            "personal": client_numbers(after["personal"], self.groups),
            "personal_before": before.get("personal"),
            "personal_selected": before.get("personal_selected"),
            "personal_classes": classes,
            "global_local": before.get("global_local"),
            "heldout": client_numbers(heldout, self.groups),
            "validated": progress.best,
            "untested": sum(1 for t in after["personal"].values() if not t.sum()),
            "bytes": progress.bytes,
            "seconds": {k: round(v, 3) for k, v in run.spent().items()},
            "rejected": progress.rejected,
            "failed": progress.failed,
            "lost": progress.lost,
            "notes": run.world.federation.notes,
        }

    def _write(self, summary: dict[str, Any], tables: Mapping[str, Tables]) -> None:
        """Final counts as arrays, then the summary: with it the run is finished."""
        arrays: dict[str, np.ndarray] = {}
        for name, each in tables.items():
            if each:
                arrays[f"{name}_clients"] = np.array(sorted(each))
                arrays[name] = np.stack([each[k] for k in sorted(each)]).astype(np.int32)
        if self._global is not None:
            arrays["global"] = self._global
        content = io.BytesIO()
        np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
        write_file(self.run.folder.path / "counts.npz", content.getvalue())
        write_file(self.run.folder.summary, json.dumps(summary, indent=1).encode())

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
    ) -> dict[str, Tables]:
        """Tables by measure, from evaluation jobs."""
        found: dict[str, Tables] = {m: {} for m in measures}
        jobs = self.run.jobs(kind, round, clients, measures)
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

    def _some(self, round: int) -> list[int]:
        """The clients measured after a round: all, or as many as `eval.clients` says, the same ones every time."""
        everybody = list(self.run.world.federation.participants)
        count = self.run.config.eval.clients
        if count == "all" or count >= len(everybody):
            return everybody
        draw = rng.generator(self.run.config.seed, "evaluated")
        return sorted(int(k) for k in draw.choice(everybody, size=count, replace=False))

    def _test_global(self) -> None:
        world = self.run.world
        model = self.run.method.global_predictor(self.run.server)
        test = world.federation.global_test
        if model is not None and len(test):
            self._global = confusion(model, test, world.task.classes, self.run.config.eval.batch).numpy()
        world.resident.reset()

    def _asks_classes(self) -> bool:
        """PA_cls asks every client about the whole global test set: dear, so by default only where it is not."""
        run, asked = self.run, self.run.config.eval.classes
        if len(run.world.federation.global_test) == 0:
            return False
        cost = len(run.world.federation.participants) * len(run.world.federation.global_test)
        if asked == "auto" and cost > FEW:
            run.say(f"PA_cls is not measured: it would take {cost} predictions; eval.classes=true measures it")
        return cost <= FEW if asked == "auto" else bool(asked)

    def _classes_of_global(self, clients: Sequence[int]) -> dict[str, Tables]:
        """Where all answer with one model, one pass over the test set serves everybody."""
        run = self.run
        model = run.method.global_predictor(run.server)
        if model is None:
            return {}
        data, task = run.world.federation, run.world.task
        own = [data.clients[k].counts.nonzero().flatten() for k in clients]
        plain, *masked = confusions(model, data.global_test, task.classes, run.config.eval.batch, [None, *own])
        run.world.resident.reset()
        tables = {k: plain.numpy() for k in clients}
        return {"classes": tables, "classes_masked": {k: m.numpy() for k, m in zip(clients, masked, strict=True)}}
