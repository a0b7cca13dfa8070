"""Presets are pinned: every parameter of each is written out here, and a new one of its base must be added."""

from typing import Any

import pytest
from pydantic import create_model

from polyfed.errors import UsageError
from polyfed.methods.base import methods
from polyfed.methods.presets import pinned

MUPFL: dict[str, Any] = {
    "weighting": "sample",
    "acmu": True,
    "alpha": 0.5,
    "kappa": "adaptive",
    "kappa_min": 2,
    "kappa_max": 6,
    "metric": "cosine",
    "m": 100,
    "match_steps": 100,
    "lr_feat": 0.1,
    "b_real": 32,
    "draws": 10,
    "augment": False,
    "match": "rows",
    "bavd": True,
    "bavd_psi": "improvement",
    "bavd_granularity": "channel",
    "bavd_compare": "activation",
    "bavd_reset": "round",
    "bavd_keep_ratio": None,
    "bavd_soft": False,
    "bavd_inverse": False,
    "pkcf": True,
    "tau": 50.0,
    "grad_at": "global",
    "tune_from": "private",
    "tune_lr": None,
    "tune_batch": 64,
    "tune_momentum": 0.0,
    "tune_decay": 0.0,
    "tune_clip": None,
    "train_after_tune": "all",
}
PRESETS: dict[str, dict[str, Any]] = {
    "mupfl-paper": MUPFL,
    "mupfl-printed": MUPFL | {"bavd_psi": "printed"},
    "ecl-algorithm1": {
        "weighting": "sample",
        "base": {"name": "fedavg"},
        "experts": 2,
        "lam": 0.5,
        "scale": "ecl",
        "expert_head_init": "global",
        "expert_trainable": "last_stage",
        "tail_balanced": True,
        "phase2_epochs": 10.0,
        "phase2_lr": 0.01,
        "phase2_bn": "eval",
        "absent": "mask",
    },
    "scaffold-official": {"weighting": "uniform", "server_lr": 0.5, "control": "official"},
}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_what_is_written_here(name: str) -> None:
    built = methods.build(name, "method")
    assert built.dump() | {"weighting": built.weighting} == {"name": name, **PRESETS[name]}


@pytest.mark.parametrize("name", PRESETS)
def test_every_parameter_is_the_presets_own(name: str) -> None:
    """None is inherited: a changed default of the base reaches no preset."""
    assert set(vars(methods.get(name))["__annotations__"]) == set(methods.get(name).model_fields)


def test_a_pin_outlives_its_base_and_keeps_type_range_and_meaning() -> None:
    base: Any = methods.get("mupfl")
    changed: Any = create_model("Changed", __base__=base, alpha=(float, 0.9), tau=(float, 7.0))
    preset: Any = pinned(alpha=0.25)(changed)
    assert (preset().alpha, preset().tau) == (0.25, 7.0)
    field = pinned(alpha=0.25)(base).model_fields["alpha"]
    assert (field.description, field.metadata) == (
        base.model_fields["alpha"].description,
        base.model_fields["alpha"].metadata,
    )
    with pytest.raises(UsageError, match=r"^'method.alpha': input should be less than or equal to 1"):
        methods.build({"name": "mupfl-paper", "alpha": 2}, "method")
    with pytest.raises(KeyError):
        pinned(alhpa=0.25)(base)


def test_a_preset_may_still_be_changed_by_key() -> None:
    assert methods.build({"name": "mupfl-printed", "kappa": 3}, "method").kappa == 3
