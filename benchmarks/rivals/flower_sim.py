"""FedAvg in Flower's own simulation, in Flower's environment; takes turns.

Its best settings on a CPU: one core and one thread per actor, so that every core works; actors, data and model are
kept between rounds; no evaluation. Rounds are timed by the hook for central evaluation, which measures nothing.
"""

import argparse
import logging
import os
from typing import Any

from flwr.app import ArrayRecord, Context, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.rivals.flower_client import FORMAT, TASK, app, net, task
from benchmarks.turns import Rounds


class Clock:
    """Waits after every turn; Flower selects whom it likes, so what was trained is counted."""

    def __init__(self) -> None:
        self.rounds, self.trained = Rounds(task().per_turn, self.samples), [0]

    def samples(self, turn: int) -> int:
        """What the clients trained in a turn."""
        return task().epochs * sum(self.trained[-task().per_turn :])

    def over(self, number: int, arrays: ArrayRecord) -> None:
        """A round is over (number 0: the start)."""
        if number and not self.rounds.over(number):
            raise RuntimeError("measured enough")

    def count(self, replies: list[RecordDict], weighted_by: str) -> MetricRecord:
        """What the clients of a round say they trained on."""
        self.trained.append(sum(int(str(reply.metric_records["metrics"][weighted_by])) for reply in replies))
        return MetricRecord()


def serve(clock: Clock | None) -> ServerApp:
    """A server app that runs FedAvg; with a clock in turns, the first round to warm up."""
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        count = clock.count if clock else None
        strategy = FedAvg(fraction_train=task().participation, fraction_evaluate=0.0, train_metrics_aggr_fn=count)
        start = ArrayRecord(net().state_dict())
        strategy.start(grid, start, num_rounds=len(task().selected), evaluate_fn=clock.over if clock else None)

    return server


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("task")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--whole", action="store_true", help="all rounds at once, no turns")
    options = parser.parse_args()
    os.environ |= {TASK: options.task, FORMAT: str(int(options.channels_last))}
    logging.disable(logging.WARNING)
    resources: dict[str, Any] = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(serve(None if options.whole else Clock()), app, len(task().sizes()), backend_config=resources)


if __name__ == "__main__":
    main()
