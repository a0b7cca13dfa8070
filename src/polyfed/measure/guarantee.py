"""What a run's privacy is worth, in one sentence, from what its summary says."""

from collections.abc import Mapping
from typing import Any

NOMINAL = "nominal noise level, no privacy guarantee"


def privacy_sentence(told: Mapping[str, Any] | None) -> str:
    """The sentence for reports and cards; empty where no privacy was asked for."""
    if not told:
        return ""
    if told.get("nominal") is not None:
        return f"epsilon {told['nominal']:g} is a {NOMINAL}."
    covered = f"epsilon {told['epsilon']:.3g}" + (
        f" at most and {told['epsilon_mean']:.3g} on average over clients" if told["kind"] == "dp-sgd" else ""
    )
    outside = "; ".join(told["outside"])
    return (
        f"{told['kind']}: {covered}, delta {told['delta']:.3g}, for {told['neighbours']}, by the {told['accountant']} "
        f"accountant; {told['noise']}. Outside the guarantee: {outside or 'nothing more'}."
    )
