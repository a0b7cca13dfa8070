"""FedAvg in Flower's own simulation, in Flower's environment; prints one JSON line.

Its best settings on a CPU: one core and one thread per actor, so that every core works; actors, data and model are
kept between rounds; no evaluation. Rounds are timed by the hook for central evaluation, which measures nothing.
"""

import argparse
import json
import logging
import os
import time
from typing import Any

from flwr.app import ArrayRecord, Context, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.rivals.flower_client import FORMAT, TASK, app, net, task


class Clock:
    """When every round was over, and how many samples it trained."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.samples: list[int] = []

    def tick(self, number: int, arrays: ArrayRecord) -> None:
        """A round is over (number 0: the start)."""
        self.times.append(time.perf_counter())

    def count(self, replies: list[RecordDict], weighted_by: str) -> MetricRecord:
        """What the clients of a round say they trained on."""
        self.samples.append(sum(int(str(reply.metric_records["metrics"][weighted_by])) for reply in replies))
        return MetricRecord()


def serve(clock: Clock, rounds: int) -> ServerApp:
    """A server app that runs FedAvg, the first round to warm up."""
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_train=task().participation, fraction_evaluate=0.0, train_metrics_aggr_fn=clock.count)
        strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds=rounds, evaluate_fn=clock.tick)

    return server


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("task")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--channels-last", action="store_true")
    options = parser.parse_args()
    os.environ |= {TASK: options.task, FORMAT: str(int(options.channels_last))}
    logging.disable(logging.WARNING)
    clock = Clock()
    resources: dict[str, Any] = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(serve(clock, options.rounds + 1), app, len(task().sizes()), backend_config=resources)
    seconds = clock.times[-1] - clock.times[1]
    print(json.dumps({"samples": task().epochs * sum(clock.samples[1:]), "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
