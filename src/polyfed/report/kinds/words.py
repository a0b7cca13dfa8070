"""What numbers are called wherever they are drawn: which model, on which data, before or after finish."""

from collections.abc import Mapping, Sequence
from typing import Any

from polyfed.report.runs import Selection, Shown

ROUND = "round"
AFTER = "personal_final"
MEASURES = {
    "global": "global model on the global test set (GA)",
    "personal": "personal models on local tests (PA_all): line before finish, star after",
    "global_local": "global model on local tests (GA_local)",
    "personal_selected": "selected clients, right after training (PA_sel)",
}
FINALLY = {
    "global": "global model on the global test set, last round (GA)",
    AFTER: "personal models on local tests, after finish (PA_all)",
}
SO_FAR = {"global": FINALLY["global"], "personal": "personal models on local tests, before finish (PA_all)"}


def titled(words: str, setting: str) -> str:
    """A panel's title: what is measured, and the setting where there are several."""
    return f"{words} · {setting}" if setting else words


def one_of(runs: Sequence[Shown]) -> str:
    """The seed of the first run, and of how many it is one."""
    count = len({run.seed for run in runs})
    return f"seed {runs[0].seed}" + (f" (one of {count})" if count > 1 else "")


def measured(selection: Selection, row: str) -> str:
    """A row's label, which says so where the row is not finished."""
    whole = all(run.finished for run in selection.runs if run.row == row)
    return row if whole else f"{row} (unfinished)"


def in_the_end(selection: Selection) -> Mapping[str, str]:
    """The measures with which runs end; where all runs are still going on, those they have so far."""
    return FINALLY if any(run.finished for run in selection.runs) else SO_FAR


def last(run: Shown, table: str, measure: str) -> Any:
    """The rows of a table's last measured round."""
    found = run.records(table)
    found = found[found["measure"] == measure]
    return found[found[ROUND] == found[ROUND].max()]


def client_name(run: Shown, name: str, selection: Selection) -> str:
    """A client, with its seed where runs have different ones."""
    return f"{name} (seed {run.seed})" if len({one.seed for one in selection.runs}) > 1 else name
