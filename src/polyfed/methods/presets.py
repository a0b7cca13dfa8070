"""Methods under the settings of a paper's text or of its released code, where those are not the defaults here."""

from polyfed.methods.base import method
from polyfed.methods.distfl import DistFL, Limit, When
from polyfed.methods.mupfl import MuPFL
from polyfed.registry import param


@method("mupfl-paper", paper="Zhang et al. 2024, as printed")
class MuPFLPaper(MuPFL):
    """MuPFL with all its defaults, whatever those of `mupfl` become."""


@method("distfl-paper", paper="Liu et al. 2021, as printed")
class DistFLPaper(DistFL):
    """DistFL clustered anew every round from fresh noise, without warm-up."""

    steps: int = param(2000, "steps of the extraction", ge=0)
    warmup_rounds: int = param(0, "rounds of one shared model before the first clustering", ge=0)
    recluster: When = param("every", "how often clusters are made; until the same clients are grouped alike twice")


@method("distfl-official", paper="Liu et al. 2021, as released")
class DistFLOfficial(DistFL):
    """DistFL with the released code's schedule and threshold (but with the paper's optimisation)."""

    steps: int = param(2000, "steps of the extraction", ge=0)
    threshold: Limit = param(0.2, "divergence below which clients belong together")
