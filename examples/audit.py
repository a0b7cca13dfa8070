"""What an honest-but-curious server reconstructs from one step of a client, by method and by network.

    python examples/audit.py --out runs/audits --picture audit.png

Every method trains on a few images of Fashion-MNIST; then the first round of some clients, or with --rounds N the one
after N, is repeated as a single step on one image, and the server searches for that image (`polyfed audit`).
Called again, it takes the runs and the audits that are there.
"""

import argparse
import json
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib import pyplot

import polyfed
from polyfed.errors import Interrupted, PolyfedError

METHODS = ("fedavg", "fedprox", "fedper", "fedrep", "ditto", "fedbn", "map", "mupfl")
MODELS: dict[str, dict[str, Any]] = {
    "mlp": {"name": "mlp", "width": 0.25},
    "lenet": {"name": "lenet"},
    "resnet8-gn": {"name": "resnet8-gn", "width": 0.5},
}
EXPERIMENT: dict[str, Any] = {
    "data": {"name": "fashion-mnist", "limit": 40},
    "split": {"partition": "dirichlet", "clients": 5, "alpha": 1.0},
    "train": {"lr": 0.05, "batch": 16},
    "eval": {"classes": False},
    "engine": {"workers": 0},
}


def audited(method: str, model: str, given: argparse.Namespace) -> dict[str, Any]:
    """The audits of some clients of one run: similarity, labels found, and the pictures themselves."""
    path = given.out / f"{method}-{model}"
    if not path.exists():
        polyfed.run(
            EXPERIMENT,
            **{"data.name": given.data},
            method=method,
            model=MODELS[model],
            rounds=given.rounds or 1,
            out=path,
        )
    elif not polyfed.load(path).finished:
        polyfed.resume(path)
    found = [audit_of(path, client, given) for client in range(given.clients)]
    if "note" in found[0]:
        return {"note": found[0]["note"]}
    names = ("originals", "one-step")
    pictures = {name: pyplot.imread(path / "audit" / f"client-{given.clients - 1}-{name}.png") for name in names}
    return {
        "psnr": fmean(psnr for one in found for psnr in one["one_step"]["psnr"]),
        "grey": fmean(psnr for one in found for psnr in one["grey_psnr"]),
        "hits": sum(one["one_step"]["label_hits"] for one in found),
        "usual": fmean(psnr for one in found for psnr in one["usual"]["psnr"]),
        "pictures": pictures,
    }


def audit_of(path: Path, client: int, given: argparse.Namespace) -> dict[str, Any]:
    """The audit of one client: the one that is there, or a new one."""
    file = path / "audit" / f"client-{client}.json"
    if not file.exists():
        return dict(polyfed.load(path).audit(client, steps=given.steps, fresh=not given.rounds, tv=given.tv))
    return dict(json.loads(file.read_text()))


def told(found: dict[str, Any], clients: int) -> str:
    """A cell of the table."""
    return f"{found['psnr']:.1f} ({found['hits']}/{clients})" if "psnr" in found else "–"


def draw(table: dict[tuple[str, str], dict[str, Any]], given: argparse.Namespace) -> None:
    """The last audited client's image, and what was found of it: a line for each method, a column for each network."""
    rows = [m for m in given.methods if any("psnr" in table[m, model] for model in given.models)]
    across = len(given.models) + 1
    figure, axes = pyplot.subplots(len(rows), across, figsize=(1.0 * across, 1.03 * len(rows)), squeeze=False)
    for axis in axes.flat:
        axis.set_xticks([])
        axis.set_yticks([])
    for line, method in zip(axes, rows, strict=True):
        line[0].set_ylabel(method, fontsize=8)
        for place, model in enumerate(given.models, 1):
            found = table[method, model]
            if "pictures" in found:
                line[0].imshow(
                    _shown(found["pictures"]["originals"]), cmap="gray", vmin=0, vmax=1, interpolation="nearest"
                )
                line[place].imshow(
                    _shown(found["pictures"]["one-step"]), cmap="gray", vmin=0, vmax=1, interpolation="nearest"
                )
    for axis, name in zip(axes[0], ("original", *given.models), strict=True):
        axis.set_title(name, fontsize=8)
    figure.tight_layout(pad=0.4)
    figure.savefig(given.picture, dpi=90, metadata={"Software": None})


def _shown(picture: np.ndarray) -> np.ndarray:
    return picture[..., :3] if picture.ndim == 3 else picture


def main(words: list[str] | None = None) -> None:
    """Audit everything and print the table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--out", type=Path, default=Path("runs/audits"))
    options.add_argument("--data", default="fashion-mnist")
    options.add_argument("--methods", nargs="+", default=list(METHODS))
    options.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    options.add_argument("--clients", type=int, default=3)
    options.add_argument("--steps", type=int, default=300)
    options.add_argument("--rounds", type=int, default=0, help="audit the round after so many; 0: the first one")
    options.add_argument("--tv", type=float, default=0.01)
    options.add_argument("--picture", type=Path)
    given = options.parse_args(words)
    table: dict[tuple[str, str], dict[str, Any]] = {}
    for method in given.methods:
        for model in given.models:
            try:
                table[method, model] = audited(method, model, given)
            except Interrupted as error:
                raise SystemExit(str(error)) from None
            except PolyfedError as error:
                table[method, model] = {"note": str(error)}
            if "note" in table[method, model]:
                print(f"{method}, {model}: {table[method, model]['note']}", flush=True)
    print(f"| method | {' | '.join(given.models)} |\n|---|{'---:|' * len(given.models)}")
    for method in given.methods:
        cells = (told(table[method, model], given.clients) for model in given.models)
        print(f"| {method} | {' | '.join(cells)} |")
    greys = [one["grey"] for one in table.values() if "grey" in one]
    usual = [f"{m}, {n}: {one['usual']:.1f}" for (m, n), one in table.items() if "usual" in one]
    print(f"PSNR in dB (labels found); a grey picture has {fmean(greys):.1f}" if greys else "nothing could be audited")
    print(f"from a usual round of all samples: {'; '.join(usual)}")
    if given.picture:
        draw(table, given)


if __name__ == "__main__":
    main()
