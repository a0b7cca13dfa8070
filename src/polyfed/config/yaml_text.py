"""Trees as YAML text: read strictly, and written so that they read back the same."""

import re
from collections import Counter
from collections.abc import Hashable
from typing import Any

import yaml

from polyfed.errors import UsageError

MERGE = "tag:yaml.org,2002:merge"
MOST_VALUES = 100_000  # of a file, each alias counted as what it stands for: a few lines can stand for billions
LONGEST = 500_000  # characters of a file: reading more would take longer than anybody waits


class _Loader(yaml.SafeLoader):
    """YAML that reads 1e-5 as a number, only true and false as truth values, and refuses a key said twice."""

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None and self._size(node, {}) > MOST_VALUES:
            raise yaml.YAMLError(f"it holds more than {MOST_VALUES} values")
        return node

    def _size(self, node: yaml.Node, known: dict[yaml.Node, int]) -> int:
        """How many values there are where every alias is written out; what contains itself is counted once."""
        if node not in known:
            known[node] = 1
            if isinstance(node, yaml.MappingNode):
                known[node] += sum(self._size(one, known) for pair in node.value for one in pair)
            elif isinstance(node, yaml.SequenceNode):
                known[node] += sum(self._size(one, known) for one in node.value)
        return known[node]

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = [self.construct_object(k, deep=True) for k, _ in node.value if k.tag != MERGE]
        twice = [key for key, times in Counter(k for k in keys if isinstance(k, Hashable)).items() if times > 1]
        if twice:
            raise yaml.YAMLError(f"the key '{twice[0]}' is given twice")
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes every string that `_Loader`, or another reader of YAML, would take for something else."""

    def represent_str(self, text: str) -> yaml.ScalarNode:
        strange = any(break_ in text for break_ in "\x85\u2028\u2029")  # line breaks that PyYAML would not give back
        return self.represent_scalar("tag:yaml.org,2002:str", text, style='"' if strange else None)


_Dumper.add_representer(str, _Dumper.represent_str)

_Loader.yaml_implicit_resolvers = {
    first: [(tag, rule) for tag, rule in rules if not tag.endswith((":bool", ":float", ":timestamp", ":int"))]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _rule, _first in (
    ("bool", r"(?:true|True|false|False)", "tTfF"),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    (
        "float",
        r"(?:[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan)",
        "-+.0123456789",
    ),
):
    for _reader_or_writer in (_Loader, _Dumper):
        _reader_or_writer.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_rule + r"\Z"), list(_first))
_Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(node.value))


def read_yaml(text: str, where: str) -> Any:
    """Plain data from YAML text; anything else is one sentence."""
    if len(text) > LONGEST:
        raise UsageError(f"{where} is longer than {LONGEST} characters")
    try:
        return _Loader(text).get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" at line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UsageError(f"{where} is not valid YAML{line}: {problem}") from None
    except RecursionError:
        raise UsageError(f"{where} is nested too deeply") from None
    except (ValueError, TypeError, OverflowError) as error:  # a number of 5000 digits, a mapping as a key
        raise UsageError(f"{where} holds a value that cannot be read: {error}") from None


def write_yaml(tree: dict[str, Any]) -> str:
    """A tree as YAML that reads back the same."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
