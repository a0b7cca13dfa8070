"""Attacks on one's own upload: noise, the opposite update, no training at all."""

from torch import Tensor

from polyfed.registry import param
from polyfed.threats.attacks.base import Attack, Place, attack


@attack("noise", paper="Blanchard et al. 2017")
class Noise(Attack):
    """Attackers send the model they were sent, or the one they trained, with Gaussian noise."""

    s: float = param(1.0, "standard deviation of the noise", gt=0)
    add: bool = param(False, "add the noise to the trained model instead of the one that was sent")

    def own(self, trained: Tensor, sent: Tensor, place: Place) -> Tensor:
        return (trained if self.add else sent) + place.noise(sent, self.s)


@attack("sign-flip", paper="Li et al. 2019 (RSA)")
class SignFlip(Attack):
    """Attackers send the opposite of their update."""

    scale: float = param(1.0, "factor of the opposite update", gt=0)

    def own(self, trained: Tensor, sent: Tensor, place: Place) -> Tensor:
        return sent - self.scale * (trained - sent)


@attack("free-rider", paper="Fraboni et al. 2021")
class FreeRider(Attack):
    """Attackers do not train: they send what they were sent, with noise that fades like real updates."""

    trains = False
    s: float = param(0.0, "standard deviation of the noise in the first round", ge=0)
    decay: float = param(1.0, "how fast the noise fades: its deviation is s * round^-decay", ge=0)

    def own(self, trained: Tensor, sent: Tensor, place: Place) -> Tensor:
        if self.s == 0:
            return sent.clone()
        return sent + place.noise(sent, self.s * place.round**-self.decay)
