"""What there is to choose from, for people and as JSON."""

from typing import Any

from polyfed.data.sources.base import sources
from polyfed.methods.base import methods
from polyfed.registry import Spec, make


def method_entries(name: str | None) -> list[dict[str, Any]]:
    """Every method, or one."""
    chosen = [methods.get(name)] if name else [m for m in methods if ":" not in m.name]
    return [_method(spec) for spec in chosen]


def _method(spec: type[Spec]) -> dict[str, Any]:
    made: Any = make(spec, {}, "method", f"method '{spec.name}'")
    wire = made.wire()
    return {
        "name": spec.name,
        "title": spec.title or spec.name,
        "paper": spec.paper,
        "what": _first_line(spec),
        "params": parameters(spec),
        "personal": str(made.kept),
        "keeps": made.remembers(),
        "global": made.has_global,
        "newcomer": made.newcomer,
        "weighting": made.weighting,
        "wire": {**wire.describe(), "only_sums": wire.only_sums},
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
    """One line a method."""
    width = max(len(e["name"]) for e in entries)
    return "\n".join(f"{e['name']:<{width}}  {e['what']} ({e['paper']})" for e in entries)


def method_text(entry: dict[str, Any]) -> str:
    """All about one method."""
    lines = [f"{entry['name']}: {entry['what']}", f"paper: {entry['paper']}", "", "parameters:"]
    lines += [f"  method.{_parameter(p)}" for p in entry["params"]] or ["  none"]
    lines += ["", "kept on the client, never sent:"]
    lines += [f"  {n}: {what}" for n, what in entry["keeps"].items()] or ["  nothing"]
    lines += ["", f"weighting: {entry['weighting']}"]
    lines += [f"a client that never trained gets {entry['newcomer']}"]
    for way, fields in (("down", entry["wire"]["down"]), ("up", entry["wire"]["up"])):
        lines += ["", f"goes {way}:", *([f"  {n}: {what}" for n, what in fields.items()] or ["  nothing"])]
    sums = "only the weighted sum of the uploads" if entry["wire"]["only_sums"] else "each upload by itself"
    return "\n".join([*lines, "", f"the server needs {sums}"])


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
