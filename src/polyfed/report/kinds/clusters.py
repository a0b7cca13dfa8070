"""Who is like whom: memberships over rounds, similarity matrices, and where uploaded models lie."""

from collections.abc import Iterator, Mapping

import numpy as np

from polyfed.report.charts import Axis, Chart, Dots, Mark, Panel, Tiles, drawn
from polyfed.report.kinds.words import one_of, titled
from polyfed.report.runs import Selection, Shown, by_row

ALONE = -1  # the tint of a client that has no group


def clusters(selection: Selection) -> Chart | None:
    """Which cluster each client was in, round by round (DistFL, figure 7)."""
    panels = [_membership_panel(title, run) for title, run in one_seed(selection)]
    caption = (
        "A tile per client and round in which it was placed. A cluster keeps the colour of the one before that "
        "it shares most clients with."
    )
    return drawn("clusters", "Clusters over rounds", caption, panels)


def similarity(selection: Selection) -> Chart | None:
    """How differently clients' models answer (DistFL, figures 6 and 8)."""
    panels = []
    for title, run in one_seed(selection):
        matrices = run.arrays("similarity")
        for number in list(matrices)[-1:]:
            clients = run.arrays("similarity_clients")[number].tolist()
            names = [names_of(run).get(k, str(k)) for k in clients]
            x, y = Axis("client", "client", names=names), Axis("other client", "other", names=names)
            tiles: list[Mark] = [Tiles("", 0, matrices[number].astype(float), "divergence")]
            panels.append(Panel(f"{title}, round {number}", x, y, tiles, square=True))
    caption = "Divergence between the answers of two clients' models to the same inputs; smaller is more alike."
    return drawn("similarity", "Similarity of clients", caption, panels)


def parameters(selection: Selection) -> Chart | None:
    """Uploaded models on their two principal directions, coloured by cluster (MuPFL, figure 10)."""
    panels = []
    for title, run in one_seed(selection):
        for number, rows in list(run.arrays("plane").items())[-1:]:
            panels.append(_plane_panel(title, run, number, rows, memberships(run).get(number, {})))
    caption = (
        "PCA of what clients uploaded in the last round, after local training; what a method keeps on the client is "
        "not in it. Colour: the cluster the method put the client in."
    )
    return drawn("parameters", "Where clients' models lie", caption, panels)


def memberships(run: Shown) -> dict[int, dict[int, int]]:
    """Client -> cluster, by round; clusters keep their number from round to round."""
    found: dict[int, dict[int, int]] = {}
    before: dict[int, int] = {}
    for number, array in run.arrays("clusters").items():
        pairs = array if array.ndim == 2 else np.column_stack([np.arange(len(array)), array])
        found[number] = _renamed({int(k): int(c) for k, c in pairs.tolist()}, before)
        before = {**before, **found[number]}
    return found


def _renamed(now: Mapping[int, int], before: Mapping[int, int]) -> dict[int, int]:
    """Clusters under the numbers of those they share most clients with; new ones under free numbers."""
    shared = {(now[k], before[k]): 0 for k in now if k in before}
    for client in now:
        if client in before:
            shared[now[client], before[client]] += 1
    names: dict[int, int] = {}
    for ours, theirs in sorted(shared, key=lambda pair: (-shared[pair], pair)):
        if ours not in names and theirs not in names.values():
            names[ours] = theirs
    taken = {*names.values(), *before.values()}
    free = (number for number in range(len(taken) + len(now)) if number not in taken)
    for cluster in sorted(set(now.values())):
        if cluster not in names:
            names[cluster] = next(free)
    return {client: names[cluster] for client, cluster in now.items()}


def _membership_panel(title: str, run: Shown) -> Panel:
    found, names = memberships(run), names_of(run)
    rounds, clients = list(found), sorted({k for one in found.values() for k in one})
    values = np.full((len(clients), len(rounds)), np.nan)
    for column, number in enumerate(rounds):
        for client, cluster in found[number].items():
            values[clients.index(client), column] = cluster
    x = Axis("round", "round", names=[str(number) for number in rounds])
    y = Axis("client", "client", names=[names.get(k, str(k)) for k in clients])
    marks: list[Mark] = [Tiles("", 0, values, "cluster", groups=True)] if found else []
    counts = [len(set(one.values())) for one in found.values()]
    note = f"{counts[-1]} cluster{'s' if counts[-1] > 1 else ''} in the last round" if counts else ""
    return Panel(title, x, y, marks, note)


def _plane_panel(title: str, run: Shown, number: int, rows: np.ndarray, placed: Mapping[int, int]) -> Panel:
    names = names_of(run)
    groups: dict[int, list[list[float]]] = {}
    for row in rows.tolist():
        groups.setdefault(placed.get(int(row[0]), ALONE), []).append(row)
    marks: list[Mark] = []
    for group, members in sorted(groups.items()):
        clients, x, y = (list(each) for each in zip(*members, strict=True))
        label = f"cluster {group}" if group != ALONE else "no cluster"
        marks.append(Dots(label, group, x, y, [names.get(int(k), "") for k in clients]))
    shares = run.arrays("plane_shares").get(number, np.zeros(2))
    across, up = (Axis(f"PC {n} ({100 * share:.0f} % of the variance)", f"pc{n}") for n, share in enumerate(shares, 1))
    scores = {int(k): float(s) for k, s in run.arrays("silhouette").get(number, np.zeros((0, 2)))}
    score = scores.get(len(set(placed.values())))
    note = f"silhouette {score:.2f}" if score is not None else ""
    return Panel(title, across, up, marks if placed else [], note)


def one_seed(selection: Selection) -> Iterator[tuple[str, Shown]]:
    """The run of the smallest seed of each row and setting, with a title that says so."""
    for setting, runs in selection.by_setting().items():
        for row, seeds in by_row(runs).items():
            words = f"{row}, {one_of(seeds)}"
            yield titled(words, setting), seeds[0]


def names_of(run: Shown) -> dict[int, str]:
    """The names of clients, by id."""
    return {one["id"]: str(one["name"]) for one in (run.federation or {"clients": []})["clients"]}
