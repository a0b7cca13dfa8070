"""Making a checked Config from trees: what is registered is looked up, and a mistake is explained in a sentence."""

import importlib
from typing import Any

from pydantic import ValidationError

from polyfed.config.sections import Config, Section, Split
from polyfed.config.trees import NAMED, Tree, merge, named_sections
from polyfed.errors import UsageError, did_you_mean
from polyfed.registry import Registry, Spec, explain, in_words, registries

CLIENTS = 20  # by default, where the data do not say
DEFAULTS: Tree = {
    "method": "fedavg",
    "data": "digits",
    "split": {},
    "model": "mlp",
    "attack": "none",
    "defence": "none",
    "engine": "local",
    "track": "none",
    "privacy": "none",
}


def make_config(*trees: Tree) -> Config:
    """One checked Config from trees, the later ones over the earlier."""
    tree = named_sections(DEFAULTS)
    for layer in trees:
        tree = merge(tree, named_sections(layer))
    known = set(Config.model_fields)
    for name in NAMED:
        tree[name] = registry_of(name).build(tree[name], name)
    tree["model"] = tree["model"].suited(tree["data"])
    _check_own_models(tree["method"], tree["model"], tree["privacy"])
    split = tree["split"]
    if isinstance(split, dict):
        tree["split"] = _split(split, tree["data"].natural_partition)
    try:
        return Config(**tree)
    except ValidationError as error:
        raise UsageError(_locate(error, known)) from None


def _check_own_models(method: Any, model: Any, privacy: Any) -> None:
    """Refuse models of clients' own where a method averages what must be alike, and where noise is fitted to one."""
    if model.per_client and privacy.name != "none":
        raise UsageError(
            f"privacy={privacy.name} bounds what one model for all tells, and model.per_client gives clients models of "
            "their own: leave one of them out"
        )
    if model.per_client and not method.own_models:
        able = ", ".join(spec.name for spec in registry_of("method") if getattr(spec, "own_models", False) is True)
        raise UsageError(
            f"model.per_client gives clients models of their own, which method '{method.name}' cannot average: leave "
            f"it out, or take a method that can ({able})"
        )


def _split(section: Tree, natural: str) -> Split:
    """Keys that are not every split's belong to the chosen partition, or to the one natural to the data."""
    common = set(Split.model_fields)
    section = in_words(section, "split")
    own = {k: v for k, v in section.items() if k not in common}
    chosen = section.get("partition") or natural
    spec = registry_of("partition").get(chosen) if not isinstance(chosen, Spec) else type(chosen)
    unknown = [k for k in own if k not in spec.model_fields]
    if unknown:
        hint = _keys_of_split(unknown[0], spec)
        if "partition" not in section and natural == "users":
            hint = f"these data have users, who are its clients unless split.partition says otherwise; {hint}"
        raise UsageError(f"unknown key 'split.{unknown[0]}' for partition '{spec.name}'; {hint}")
    partition = registry_of("partition").build(chosen if isinstance(chosen, Spec) else {"name": chosen, **own}, "split")
    given = {k: v for k, v in section.items() if k in common}
    if given.get("clients") is None and not getattr(partition, "by", ""):
        given["clients"] = CLIENTS
    try:
        return Split(**{**given, "partition": partition})
    except ValidationError as error:
        raise UsageError(explain(error, "split", common, "split")) from None


def _keys_of_split(word: str, spec: type[Spec]) -> str:
    """What to write instead of a key that a partition has not: one that is near, or what there is, and whose it is."""
    common, own = set(Split.model_fields) - {"partition"}, set(spec.model_fields)
    others = [one.name for one in registry_of("partition") if word in one.model_fields]
    if not others:
        return did_you_mean(word, common | own | {"partition"})
    takes = f"takes {', '.join(sorted(own))}" if own else "takes no key of its own"
    return f"it {takes}, and every split takes {', '.join(sorted(common))}; {word} belongs to {', '.join(others)}"


def _locate(error: ValidationError, known: set[str]) -> str:
    """Explain a mistake in a fixed section, with that section's own keys as suggestions."""
    location = error.errors(include_url=False)[0]["loc"]
    section = Config.model_fields[str(location[0])].annotation if location and str(location[0]) in known else None
    if len(location) > 1 and isinstance(section, type) and issubclass(section, Section):
        return explain(error, "", set(section.model_fields), f"'{location[0]}'")
    return explain(error, "", known, "an experiment")


def registry_of(kind: str) -> Registry:
    """The registry of a kind, importing the room that owns it on first use."""
    homes = {
        "method": "polyfed.methods",
        "model": "polyfed.models",
        "data": "polyfed.data.sources",
        "partition": "polyfed.data.partition",
        "attack": "polyfed.threats.attacks",
        "defence": "polyfed.threats.defences",
        "engine": "polyfed.engine.base",
        "track": "polyfed.measure.trackers",
        "privacy": "polyfed.threats.privacy",
    }
    if kind not in registries:
        importlib.import_module(homes[kind])
    return registries[kind]
