"""What is trained: the zoo, and the user's own modules; every model is trunk + last + head, and says so."""

from polyfed.models import (  # noqa: F401  (importing them fills the registry)
    lraspp,
    plain,
    resnet,
    resnet50,
    table,
    text,
    vgg,
)
from polyfed.models.base import Ensemble, Model, Net, Pixels, bn_modules, model, models
from polyfed.models.own import Wrapped, hold, own_model

__all__ = ["Ensemble", "Model", "Net", "Pixels", "Wrapped", "bn_modules", "hold", "model", "models", "own_model"]
