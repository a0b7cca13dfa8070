"""What there is to choose from, for people and as JSON."""

from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from typing import Any

from polyfed.comparison.rows import PaperRow
from polyfed.config import flatten
from polyfed.data.sources.base import sources
from polyfed.methods.base import EDGES, FAMILIES, methods
from polyfed.registry import Spec, make

INTRODUCTION = f"""# Catalogue of methods

This page is what `polyfed methods --markdown` prints; `polyfed methods NAME` says all about one method.

`down` and `up` say how many floats each participating client receives and sends in a round: P stands for the whole
model, P[slice] for a slice of it, C for the number of classes, d for the width of the features, and h for that width
with a bias; `polyfed methods NAME` explains other words. Where sums suffice, the server needs only the weighted sum of
the uploads, as secure aggregation gives it. Costs are compared with those of FedAvg.

The column `edges` says what a method does where there is hardly anything to learn from, unless it does as most do:

- with a client of one class: {EDGES["one class"]};
- with a client of one sample: {EDGES["one sample"]};
- with a model without BatchNorm: {EDGES["no BatchNorm"]}."""
ROWS = """\
These rows of the papers' tables are not methods of their own, but settings of other methods. `polyfed methods --rows`
lists them, and a comparison takes them by name: `polyfed compare methods=fedavg,fedavg+local`."""


def method_entries(name: str | None) -> list[dict[str, Any]]:
    """Every method by family, or one."""
    if name:
        return [_method(methods.get(name))]
    entries = [_method(spec) for spec in methods if ":" not in spec.name]
    return sorted(entries, key=lambda entry: (FAMILIES.index(entry["family"]), entry["name"]))


def _method(spec: type[Spec]) -> dict[str, Any]:
    made: Any = make(spec, {}, "method", f"method '{spec.name}'")
    wire = made.wire()
    return {
        "name": spec.name,
        "written": spec.written or spec.name,
        "family": made.sorted_under,
        "paper": spec.paper,
        "title": spec.title,
        "what": _first_line(spec),
        "params": parameters(spec),
        "personal": str(made.kept),
        "keeps": made.remembers(),
        "global": made.has_global,
        "own_models": made.own_models,
        "newcomer": made.newcomer,
        "weighting": made.weighting,
        "cost": made.cost,
        "edges": made.at_the_edges(),
        "wire": {**wire.describe(), "only_sums": wire.only_sums},
        "sizes": {"down": wire.sizes("down"), "up": wire.sizes("up")},
    }


def parameters(spec: type[Spec]) -> list[dict[str, Any]]:
    """Names, types, defaults, ranges and meanings."""
    schema = spec.model_json_schema(mode="serialization") if spec.model_fields else {"properties": {}}
    found = []
    for name, field in spec.model_fields.items():
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        bounds = {
            k: v for m in field.metadata for k in ("ge", "gt", "le", "lt") if (v := getattr(m, k, None)) is not None
        }
        found.append(
            {
                "name": name,
                "type": _type_name(field.annotation),
                "default": default.dump() if isinstance(default, Spec) else default,
                "required": field.is_required(),
                "range": bounds,
                "what": field.description or schema["properties"].get(name, {}).get("description", ""),
            }
        )
    return found


def _type_name(annotation: Any) -> str:
    if isinstance(annotation, type):
        return annotation.__name__
    return str(annotation).replace("typing.", "").replace("pathlib.", "")


def _first_line(spec: type) -> str:
    return (spec.__doc__ or "").strip().splitlines()[0] if spec.__doc__ else ""


def methods_text(entries: list[dict[str, Any]]) -> str:
    """One line a method, under its family."""
    width = max(len(e["name"]) for e in entries)
    blocks = []
    for family, members in groupby(entries, key=itemgetter("family")):
        lines = [f"  {e['name']:<{width}}  {e['what']} ({e['paper']})" for e in members]
        blocks.append("\n".join([f"{family}:", *lines]))
    return "\n\n".join(blocks)


def method_text(entry: dict[str, Any]) -> str:
    """All about one method."""
    lines = [f"{entry['name']}: {entry['what']}", f"paper: {cited(entry)}", f"family: {entry['family']}"]
    lines += ["", "parameters:"]
    lines += [f"  method.{_parameter(p)}" for p in entry["params"]] or ["  none"]
    lines += ["", "kept on the client, never sent:"]
    lines += [f"  {n}: {what}" for n, what in entry["keeps"].items()] or ["  nothing"]
    lines += ["", f"weighting: {entry['weighting']}"]
    lines += [f"a client that never trained gets {entry['newcomer']}"]
    lines += ["clients may have architectures of their own: model.per_client"] if entry["own_models"] else []
    for way in ("down", "up"):
        fields = entry["wire"][way]
        lines += ["", f"goes {way}:", *([f"  {n}: {what}" for n, what in fields.items()] or ["  nothing"])]
    sums = "only the weighted sum of the uploads" if entry["wire"]["only_sums"] else "each upload by itself"
    lines += ["", f"the server needs {sums}"]
    lines += [f"floats for each client and round: {entry['sizes']['down']} down, {entry['sizes']['up']} up"]
    lines += [f"a round costs: {entry['cost']}", "", "where there is hardly anything to learn from:"]
    return "\n".join([*lines, *(f"  {case}: {what}" for case, what in entry["edges"].items())])


def cited(entry: dict[str, Any]) -> str:
    """Authors, year and title of a method's paper, as far as it has one."""
    return ", ".join(part for part in (entry["paper"], entry["title"]) if part)


def markdown(entries: list[dict[str, Any]], rows: list[dict[str, Any]]) -> str:
    """The catalogue as a page: for every family what its methods send and cost, and where they come from."""
    parts = [INTRODUCTION]
    for family, found in groupby(entries, key=itemgetter("family")):
        members = list(found)
        sent = [[f"`{e['name']}`", *e["sizes"].values(), "yes" if _sums(e) else "no", e["cost"]] for e in members]
        kept = [[f"`{e['name']}`", f"{e['what']} {cited(e)}.", _kept(e), _unusual(e)] for e in members]
        parts += [
            f"## {family.capitalize()}",
            _table("method | what it does, paper | stays on the client | edges", kept),
        ]
        parts += [_table("method | down | up | sums suffice | a round computes", sent)]
    made = [[f"`{r['name']}`", r["what"], r["table"], f"`{r['keys']}`", f"`{r['reads']}`"] for r in rows]
    parts += ["## Rows that are settings", ROWS, _table("row | what it is | stands in | keys | number", made)]
    return "\n\n".join(parts) + "\n"


def _sums(entry: dict[str, Any]) -> bool:
    return entry["wire"]["only_sums"]


def _kept(entry: dict[str, Any]) -> str:
    return "; ".join(f"{name}: {what}" for name, what in entry["keeps"].items()) or "nothing"


def _unusual(entry: dict[str, Any]) -> str:
    """What it does at the edges where that is not what all do."""
    return "; ".join(f"{case}: {what}" for case, what in entry["edges"].items() if EDGES.get(case) != what)


def _table(names: str, lines: list[list[str]]) -> str:
    rule = "|".join(["---"] * (names.count("|") + 1))
    return "\n".join([f"| {names} |", f"|{rule}|", *(f"| {' | '.join(line)} |" for line in lines)])


def row_entries(rows: Iterable[PaperRow]) -> list[dict[str, Any]]:
    """Rows of papers that are settings, as plain data; their keys as one types them."""
    return [{**vars(row), "keys": " ".join(_words(row.keys))} for row in rows]


def _words(keys: dict[str, Any]) -> list[str]:
    values = {key.replace(".name", ""): value for key, value in flatten(keys).items()}
    return [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in values.items()]


def rows_text(entries: list[dict[str, Any]]) -> str:
    """Three lines a row."""
    blocks = [f"{e['name']}: {e['what']}\n  {e['table']}: {e['reads']}\n  {e['keys']}" for e in entries]
    return "\n".join(blocks)


def _parameter(entry: dict[str, Any]) -> str:
    words = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    bounds = ", ".join(f"{words[k]} {v:g}" for k, v in entry["range"].items())
    default = "must be given" if entry["required"] else f"= {entry['default']}"
    return f"{entry['name']} {default}  ({entry['type']}{', ' + bounds if bounds else ''})  {entry['what']}"


def data_entries(name: str | None) -> list[dict[str, Any]]:
    """Every source, or one."""
    chosen = [sources.get(name)] if name else list(sources)
    return [{"name": s.name, "paper": s.paper, "what": _first_line(s), "params": parameters(s)} for s in chosen]


def data_text(entries: list[dict[str, Any]]) -> str:
    """One line a source; all about it where it is the only one."""
    width = max(len(e["name"]) for e in entries)
    lines = [f"{e['name']:<{width}}  {e['what']}" for e in entries]
    if len(entries) == 1:
        lines += ["", "parameters:", *(f"  data.{_parameter(p)}" for p in entries[0]["params"])]
    return "\n".join(lines)
