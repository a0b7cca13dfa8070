"""Mean ranks with the critical difference: which rows differ over all settings and seeds."""

from collections.abc import Hashable, Mapping

from polyfed.measure.ranks import LEVEL, Ranking, ranking
from polyfed.report.charts import Axis, Chart, Dots, Mark, Panel, drawn
from polyfed.report.runs import Selection, by_row

MOST = 60  # rows that can be read


def ranks(selection: Selection) -> Chart | None:
    """Ranks of the rows that were run in every setting, by personal accuracy."""
    scores: dict[str, dict[Hashable, float]] = {}
    for setting, runs in selection.by_setting().items():
        for row, seeds in by_row(runs).items():
            for run in seeds:
                personal = (run.summary or {}).get("personal")
                if personal:
                    scores.setdefault(row, {})[setting, run.seed] = personal["accuracy"]
    most = max((len(each) for each in scores.values()), default=0)
    return rank_chart({row: each for row, each in scores.items() if len(each) == most})


def rank_chart(scores: Mapping[str, Mapping[Hashable, float]]) -> Chart | None:
    """A critical-difference diagram of scores by row and block; None where there are too few."""
    found = ranking(scores)
    if found is None or len(found.ranks) > MOST:
        return None
    return drawn("ranks", "Critical differences", _caption(found), [_panel(found)])


def _panel(found: Ranking) -> Panel:
    """A row per method, best first, each with half the critical difference to both sides."""
    names, places = list(found.ranks), list(range(len(found.ranks)))
    half = [found.critical / 2] * len(names)
    mark: Mark = Dots("", 0, list(found.ranks.values()), places, names, spread=(half, [0.0] * len(names)))
    best = next(iter(found.ranks.values())) + found.critical / 2
    return Panel("", Axis("mean rank", "rank"), Axis("", "method", names=names), [mark], rule=best)


def _caption(found: Ranking) -> str:
    return (
        f"Mean rank over {found.blocks} settings and seeds, by personal accuracy; 1 is best. Bars are half the "
        f"critical difference of {found.critical:.2f} wide to each side: rows whose bars do not overlap differ by "
        f"Nemenyi's test at {LEVEL:g}; those right of the dotted line are worse than the best. Friedman's test: p = "
        f"{found.p:.2g}."
    )
