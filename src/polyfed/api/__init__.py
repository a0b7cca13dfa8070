"""The Python API: make a federation, run a method, compare several, load what was run."""

from polyfed.api.comparison import Comparison, compare
from polyfed.api.given import config_of
from polyfed.api.result import Result
from polyfed.api.running import federation, load, resume, run
from polyfed.methods.base import methods

__all__ = ["Comparison", "Result", "compare", "config_of", "federation", "load", "methods", "resume", "run"]
