"""Methods under the settings of a paper's text or of its released code; what is pinned here changes only here.

A preset is a method, so it cannot set keys of `train`, of the split or of the model: docs/methods.md lists those.
"""

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import Field, create_model

from polyfed.methods.base import Method, method
from polyfed.methods.distfl import DistFL
from polyfed.methods.ecl import ECL
from polyfed.methods.fedavg import FedAvg
from polyfed.methods.mupfl import MuPFL
from polyfed.methods.scaffold import Scaffold

M = TypeVar("M", bound=Method)


def pinned(**values: Any) -> Callable[[type[M]], type[M]]:
    """Class decorator: these are its defaults, whatever those of its base become; types and ranges stay the base's."""

    def pin(spec: type[M]) -> type[M]:
        fields: dict[str, Any] = {}
        for key, value in values.items():
            known = spec.model_fields[key]
            fields[key] = Annotated[known.annotation, *known.metadata, Field(description=known.description)], value
        return create_model(spec.__name__, __base__=spec, __module__=spec.__module__, __doc__=spec.__doc__, **fields)

    return pin


MUPFL: dict[str, Any] = {
    "bavd": True,
    "bavd_psi": "improvement",
    "bavd_granularity": "channel",
    "bavd_compare": "activation",
    "bavd_reset": "round",
    "bavd_keep_ratio": None,
    "bavd_soft": False,
    "bavd_inverse": False,
    "acmu": True,
    "alpha": 0.5,
    "kappa": "adaptive",
    "kappa_min": 2,
    "kappa_max": 6,
    "metric": "cosine",
    "pkcf": True,
    "m": 100,
    "tau": 50.0,
    "match": "rows",
    "match_steps": 100,
    "lr_feat": 0.1,
    "b_real": 32,
    "draws": 10,
    "augment": False,
    "grad_at": "global",
    "tune_from": "private",
    "tune_lr": None,
    "tune_batch": 64,
    "tune_momentum": 0.0,
    "tune_decay": 0.0,
    "tune_clip": None,
    "train_after_tune": "all",
}


@method(
    "mupfl-paper",
    written="MuPFL (paper)",
    paper="Zhang et al. 2024, equations read so that they agree with the prose",
    title=MuPFL.title,
)
@pinned(**MUPFL)
class MuPFLPaper(MuPFL):
    """MuPFL as its text describes it; where an equation says the opposite, the prose is followed."""

    weighting = "sample"


@method("mupfl-printed", written="MuPFL (as printed)", paper="Zhang et al. 2024, psi as printed", title=MuPFL.title)
@pinned(**MUPFL | {"bavd_psi": "printed"})
class MuPFLPrinted(MuPFL):
    """MuPFL whose maps grow when the loss rises: the sign of psi as it is printed, against the sentence after it."""

    weighting = "sample"


@method("ecl-algorithm1", written="ECL (algorithm 1)", paper="Lv et al. 2024, algorithm 1", title=ECL.title)
@pinned(
    base=FedAvg(),
    experts=2,
    lam=0.5,
    scale="ecl",
    expert_head_init="global",
    expert_trainable="last_stage",
    tail_balanced=True,
    phase2_epochs=10.0,
    phase2_lr=0.01,
    phase2_bn="eval",
    absent="mask",
)
class ECLAlgorithm1(ECL):
    """ECL whose experts start as the whole global model, head too (algorithm 1, line 16), not under fresh heads."""


@method(
    "scaffold-official",
    written="SCAFFOLD (official)",
    paper="Karimireddy et al. 2020, as MAP's authors released it",
    title=Scaffold.title,
)
@pinned(server_lr=0.5, control="official")
class ScaffoldOfficial(Scaffold):
    """SCAFFOLD as in MAP's released code: c takes the whole mean change, the raw gradient is clipped, eta_g = 0.5.

    To it belong train.lr=0.03, train.momentum=0, train.weight_decay=0, train.clip=100 and train.min_steps=5.
    """

    weighting = "uniform"


DISTFL: dict[str, Any] = {
    "z": 200,
    "channel_ratio": 0.5,
    "abs_gamma": False,
    "steps": 2000,
    "lr": 0.1,
    "warm_start": False,
    "softness": 0.0,
    "threshold": "auto",
    "min_ratio": 2.5,
    "linkage": "components",
    "warmup_rounds": 0,
    "recluster": "every",
    "knowledge": "responses",
    "target": "preaggregate",
    "pre_norm_gate": 10.0,
    "no_bn": "stats",
}


@method("distfl-paper", written="DistFL (paper)", paper="Liu et al. 2021, as printed", title=DistFL.title)
@pinned(**DISTFL)
class DistFLPaper(DistFL):
    """DistFL on plain responses, clustered anew every round from fresh noise, without warm-up.

    The paper calls its threshold apparent and prints no number: it is found where the heights of the dendrogram jump.
    """

    weighting = "uniform"


@method("distfl-official", written="DistFL (official)", paper="Liu et al. 2021, as released", title=DistFL.title)
@pinned(**DISTFL | {"threshold": 0.2, "warmup_rounds": 5, "recluster": "once"})
class DistFLOfficial(DistFL):
    """DistFL on plain responses with the released code's schedule and threshold, but with the paper's optimisation."""

    weighting = "uniform"
