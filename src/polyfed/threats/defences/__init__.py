"""Defences: what takes the place of the plain average, so that a few malicious uploads cannot decide the model.

The rules are pure functions in `robust`; here each has a name, its keys and the range in which it is legal, in one file
for each kind of rule. docs/threats.md says which rule helps against which attack.
"""

from polyfed.threats.defences import clipping, coordinates, credit, distances
from polyfed.threats.defences.base import Case, Defence, Verdict, defence, defences

__all__ = ["Case", "Defence", "Verdict", "clipping", "coordinates", "credit", "defence", "defences", "distances"]
