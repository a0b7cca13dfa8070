"""One typed tree for an experiment; an unknown key is an error that names the nearest one."""

from polyfed.config.keys import ABSENT, BESIDE, deciding, differences, identity
from polyfed.config.make import DEFAULTS, make_config, registry_of
from polyfed.config.sections import Config, Section, Split, Train
from polyfed.config.trees import (
    NAMED,
    Tree,
    flatten,
    merge,
    named_sections,
    read_config,
    unflatten,
)
from polyfed.config.words import read_assignments
from polyfed.config.yaml_text import read_yaml, write_yaml

__all__ = [
    "ABSENT",
    "BESIDE",
    "DEFAULTS",
    "NAMED",
    "Config",
    "Section",
    "Split",
    "Train",
    "Tree",
    "deciding",
    "differences",
    "flatten",
    "identity",
    "make_config",
    "merge",
    "named_sections",
    "read_assignments",
    "read_config",
    "read_yaml",
    "registry_of",
    "unflatten",
    "write_yaml",
]
