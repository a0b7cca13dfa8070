"""Attacks: what some clients of a simulation do wrong on purpose, to their data, to their upload, or all together.

Who attacks follows from the seed alone, so every process knows it and no message tells it. An attack on uploads touches
the weights of the fields that are measured against a model sent down; float buffers stay as they were trained, because
a boosted variance would turn negative. In rounds without an attack an attacker is honest, on clean data.
"""

from polyfed.threats.attacks import samples, uploads
from polyfed.threats.attacks.base import Attack, Place, attack, attacks
from polyfed.threats.attacks.collusion import Collusion

__all__ = ["Attack", "Collusion", "Place", "attack", "attacks", "samples", "uploads"]
