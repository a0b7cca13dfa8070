"""Methods that are nothing but two others together: no train, fit or merge of their own."""

from polyfed.methods.base import method
from polyfed.methods.ditto import Ditto
from polyfed.methods.fedrs import FedRS
from polyfed.methods.map import MAP
from polyfed.methods.scaffold import Scaffold


@method("ditto-rs", written="DittoRS", paper="Li et al. 2023 (MAP)", title=MAP.title)
class DittoRS(Ditto, FedRS):
    """Ditto with restricted softmax in its global branch."""


@method("sca-rs", written="ScaRS", paper="Li et al. 2023 (MAP)", title=MAP.title)
class ScaRS(Scaffold, FedRS):
    """SCAFFOLD's corrected steps on the restricted softmax."""


@method("sca-map", written="ScaMAP", paper="Li et al. 2023 (MAP)", title=MAP.title)
class ScaMAP(Scaffold, MAP):
    """MAP with SCAFFOLD's corrections in its first stage; the second stage stays plain and private."""
