"""How each method is kept small in tests over all methods: config keys beside its name."""

from typing import Any

SMALL: dict[str, dict[str, Any]] = {
    "creff": {
        "method.m": 10,
        "method.match_steps": 20,
        "method.draws": 2,
        "method.head_epochs": 30,
        "method.head_lr": 0.1,
    },
    "distfl": {"method.steps": 20, "method.z": 20, "method.warmup_rounds": 1, "model.name": "mlp-bn"},
    "distfl-official": {"method.steps": 20, "method.z": 20, "model.name": "mlp-bn"},
    "distfl-paper": {"method.steps": 20, "method.z": 20, "model.name": "mlp-bn"},
    "feddf": {"split.public": 10, "method.steps": 10, "method.patience": 3},
    "fedafa": {"method.epochs": 2, "method.steps": 3},
    "fedbn": {"model.name": "mlp-bn"},
    "fedlora": {"model.lora.rank": 2},
    "mupfl": {"method.m": 5, "method.match_steps": 5, "method.draws": 2, "method.tau": 2},
    "mupfl-paper": {"method.m": 5, "method.match_steps": 5, "method.draws": 2, "method.tau": 2},
    "mupfl-printed": {"method.m": 5, "method.match_steps": 5, "method.draws": 2, "method.tau": 2},
}
