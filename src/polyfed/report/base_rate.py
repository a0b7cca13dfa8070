"""The base rate of an attack: the success rate of the same run in which nobody ever attacks (`attack.rounds=never`)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from polyfed.comparison.folder import Found
from polyfed.comparison.values import word

NEVER = "never"
KEY = "attack.rounds"


def with_base_rates(found: Sequence[Found]) -> list[Found]:
    """The same results; an attacked one whose base is among them also has `threats.base`."""
    bases = {_apart_from_rounds(one): _success(one) for one in found if _when(one) == NEVER}
    return [one if _when(one) == NEVER else _with(one, bases.get(_apart_from_rounds(one))) for one in found]


def _with(one: Found, base: float | None) -> Found:
    if base is None:
        return one
    return replace(one, summary={**one.summary, "threats": {**one.summary["threats"], "base": base}})


def _success(one: Found) -> float | None:
    return (one.summary.get("threats") or {}).get("asr")


def _when(one: Found) -> Any:
    """The rounds in which a row attacks, where its labels tell."""
    told: Mapping[str, Any] = {**one.own, **one.setting}
    attack = told.get("attack")
    return attack.get("rounds") if isinstance(attack, dict) else told.get(KEY)


def _apart_from_rounds(one: Found) -> tuple[str, ...]:
    """What a result and its base have in common."""
    told = {**one.own, **one.setting}
    if isinstance(told.get("attack"), dict):
        told["attack"] = {key: value for key, value in told["attack"].items() if key != "rounds"}
    same = [f"{key}={word(value)}" for key, value in told.items() if key != KEY]
    return (one.row, str(one.seed), *same)
