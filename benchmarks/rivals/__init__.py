"""Other simulators, each in an environment of its own, driven by its public API."""
