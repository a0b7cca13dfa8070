"""A report: one HTML file with the tables, figures, configs and commands of some runs; it needs no network."""

import base64
import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from polyfed.comparison.folder import FILE, is_comparison
from polyfed.config import write_yaml
from polyfed.errors import UsageError, reading
from polyfed.files import write_file
from polyfed.report.charts import DARK, LIGHT, Chart
from polyfed.report.interactive import figure, wide
from polyfed.report.kinds import KINDS
from polyfed.report.names import as_written
from polyfed.report.packed import packed, packed_plotly
from polyfed.report.runs import Selection, Shown, by_row, select
from polyfed.report.tables import CAPTION_OF_THREATS, caption, comparison_table, threats_table

HERE = Path(__file__).parent
THREATS = "Attack and defence"
SECTIONS = {
    "Accuracy and its cost": ("rounds", "bytes", "seconds", "ranks"),
    "The data": ("holdings", "tail"),
    "Classes": ("groups", "classes"),
    "Pictures": ("pictures",),
    "Clients": ("clients", "change", "scatter"),
    "Clusters": ("clusters", "similarity", "parameters"),
    THREATS: ("attack", "weights"),
    "Uploads that did not count": ("uploads",),
}
THEMES: Mapping[str, Mapping[str, str]] = {
    name: {"ink": ink, "faint": faint, "grid": grid, "paper": paper, "raised": raised, "accent": tints[0]}
    | {f"tint-{number}": colour for number, colour in enumerate(tints)}
    for name, ink, faint, grid, paper, raised, tints in (
        ("light", "#1c2128", "#66707c", "#e3e7ec", "#ffffff", "#f6f8fa", LIGHT),
        ("dark", "#e6e9ee", "#98a3b0", "#2b323b", "#14171c", "#1c2127", DARK),
    )
}


class Drawn(NamedTuple):
    """A chart on the page: its panels' places in the list of figures, and the command that gives it for print."""

    chart: Chart
    panels: Sequence[tuple[int, Any, bool]]
    command: str


def write_report(paths: Sequence[Path], out: Path | None = None, baseline: str | None = None) -> Path:
    """The report of runs and comparisons, in a file; where it is."""
    selection = select(paths, baseline)
    if out is None:
        out = paths[0] / "report.html" if len(paths) == 1 else Path("report.html")
    with reading(" and ".join(f"'{path}'" for path in paths)):
        drawn = page(selection).encode()
    try:
        write_file(out, drawn)
    except OSError as error:
        raise UsageError(f"cannot write to '{out}': {error.strerror}") from None
    return out


def page(selection: Selection, plotly: str | None = None) -> str:
    """The whole page as text; Plotly is in it, packed, unless an address says where it lies."""
    from plotly.offline import get_plotlyjs

    figures: list[Mapping[str, Any]] = []
    sections = {title: _section(kinds, selection, figures) for title, kinds in SECTIONS.items()}
    finished = [run.found() for run in selection.runs if run.finished]
    threats = threats_table(finished, selection.baseline)
    library, script = get_plotlyjs(), (HERE / "page.js").read_text(encoding="utf-8")
    allowed = _allowed([script] if plotly else [library, script])
    policy = ["default-src 'none'", "style-src 'unsafe-inline'", "img-src data: blob:", allowed]
    around = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return around.get_template("page.html").render(
        title=_title(selection),
        facts=_facts(selection),
        table=comparison_table(finished, selection.baseline),
        caption=caption([one.summary for one in finished]),
        unfinished=[(run, _reached(run)) for run in selection.runs if not run.finished],
        sections={title: drawn for title, drawn in sections.items() if drawn},
        tables={THREATS: (threats, CAPTION_OF_THREATS)} if threats else {},
        kept=_kept(selection),
        configs=_configs(selection),
        environments=_environments(selection),
        repeats=_repeats(selection),
        runs=selection.runs,
        style=Markup(stylesheet()),
        figures=packed(json.dumps(figures, allow_nan=False, separators=(",", ":"))),
        plotly=plotly,
        library=None if plotly else packed_plotly(),
        remarks=selection.remarks(),
        script=Markup(script),
        policy="; ".join(policy) + (" 'self'" if plotly else ""),
    )


def stylesheet() -> str:
    """The colours of both themes, and how everything is drawn with them."""
    light, dark = (
        "".join(f"--{name}: {colour}; " for name, colour in colours.items()) + f"color-scheme: {theme};"
        for theme, colours in THEMES.items()
    )
    screen = '[data-theme="light"], [data-printing]', '[data-theme="dark"]:not([data-printing])'
    rules = [
        f":root {{ {light} }}",
        f"@media screen and (prefers-color-scheme: dark) {{ :root:not({screen[0]}) {{ {dark} }} }}",
        f"@media screen {{ :root{screen[1]} {{ {dark} }} }}",
        (HERE / "page.css").read_text(encoding="utf-8"),
    ]
    return "\n".join(rules)


def _section(kinds: Sequence[str], selection: Selection, figures: list[Mapping[str, Any]]) -> list[Drawn]:
    """The charts of a section that have data; their panels are added to the figures."""
    made = []
    for kind in kinds:
        found = KINDS[kind].draw(selection)
        if found is None:
            continue
        chart = found.written()
        places = [(len(figures) + place, panel, wide(panel)) for place, panel in enumerate(chart.panels)]
        figures += [figure(panel) for panel in chart.panels]
        made.append(Drawn(chart, places, _command("figure", kind, *selection.sources, "--out", f"{kind}.pdf")))
    return made


def _allowed(scripts: Sequence[str]) -> str:
    """Only these scripts run, whatever a name or a config may hold."""
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    return " ".join(["script-src", *(f"'sha256-{digest}'" for digest in digests)])


# ---- in words


def _title(selection: Selection) -> str:
    data = ", ".join(dict.fromkeys(str(run.config["data"].get("name")) for run in selection.runs))
    rows = selection.rows
    named = ", ".join(map(as_written, rows))
    return f"{named if len(named) <= 40 else f'{len(rows)} methods'} on {data}"


def _facts(selection: Selection) -> list[str]:
    runs, seeds = len(selection.runs), len({run.seed for run in selection.runs})
    facts = [f"{runs} run{'s' if runs > 1 else ''}", f"{seeds} seed{'s' if seeds > 1 else ''}"]
    open_runs = sum(not run.finished for run in selection.runs)
    facts += [f"{open_runs} unfinished"] if open_runs else []
    return facts + ([f"{selection.missing} not begun"] if selection.missing else [])


def _reached(run: Shown) -> int:
    """The last round an unfinished run has recorded."""
    found = run.records("training")["round"]
    return int(found.max()) if len(found) else 0


def _configs(selection: Selection) -> dict[str, str]:
    """The complete config of each row and setting; its seeds differ in nothing else."""
    made = {}
    for setting, runs in selection.by_setting().items():
        for row, seeds in by_row(runs).items():
            numbers = ", ".join(str(run.seed) for run in seeds)
            which = f"seed{'s' if len(seeds) > 1 else ''} {numbers}"
            label = ", ".join(filter(None, [as_written(row), setting, which]))
            made[label] = write_yaml(seeds[0].config)
    return made


def _kept(selection: Selection) -> dict[str, Mapping[str, str]]:
    """What every finished row keeps on its clients, by name and in words."""
    told = {run.row: run.summary["keeps"] for run in selection.runs if run.summary and run.summary.get("keeps")}
    return {as_written(row): told[row] for row in selection.rows if row in told}


def _environments(selection: Selection) -> dict[str, Mapping[str, str]]:
    """What the bits may depend on, once for the runs that have it in common."""
    groups: dict[str, list[Shown]] = {}
    for run in selection.runs:
        around = {key: str(value) for key, value in run.environment.items() if key != "command"}
        groups.setdefault(json.dumps(around), []).append(run)
    everybody = len(groups) == 1
    return {
        "all runs" if everybody else ", ".join(run.path.name for run in runs): json.loads(around)
        for around, runs in groups.items()
        if around != "{}"
    }


def _repeats(selection: Selection) -> list[tuple[str, str]]:
    """How runs and comparisons were made, and the commands that make them again elsewhere."""
    made = []
    for source in selection.sources:
        inside = [run for run in selection.runs if source == run.path or source in run.path.parents]
        if is_comparison(source):
            made.append((_made_by(inside[:1]), _command("compare", source / FILE, "--out", "again")))
        else:
            made += [(_made_by([run]), _command("run", run.path / "config.yaml", "--out", "again")) for run in inside]
    return made


def _made_by(runs: Sequence[Shown]) -> str:
    """The command line a run came from; nothing where it is not known."""
    words = [str(word) for run in runs for word in run.environment.get("command") or ()]
    return shlex.join([Path(words[0]).name, *words[1:]]) if words else ""


def _command(*words: Any) -> str:
    return shlex.join(["polyfed", *map(str, words)])
