"""Who runs them: engines, the round loop, and what keeps a run safe."""

from polyfed.engine import flower, local
from polyfed.engine.base import Crew, Engine, engine, engines

__all__ = ["Crew", "Engine", "engine", "engines", "flower", "local"]
