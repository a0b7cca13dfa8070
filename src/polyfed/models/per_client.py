"""Which model is whose: `model.per_client` maps clients, by name, id or a pattern of names, to models of their own."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from polyfed.errors import UsageError, did_you_mean
from polyfed.models.base import Model


def models_of(model: Model, names: Sequence[str]) -> list[Model]:
    """The model of each client, in the order of ids: its own, or the common one.

    A name or an id goes before patterns, and a word that is both a name and an id is a name. A word that fits no client
    is refused, and so are patterns that would give one client different models, since their order decides nothing.
    """
    if not model.per_client:
        return [model] * len(names)
    exact = {word: k for k, word in enumerate(map(str, range(len(names))))} | {name: k for k, name in enumerate(names)}
    own = {exact[word]: one for word, one in model.per_client.items() if word in exact}
    patterns = {word: one for word, one in model.per_client.items() if word not in exact}
    for word in patterns:
        if not any(fnmatchcase(name, word) for name in names):
            hint = did_you_mean(word, names)
            raise UsageError(f"model.per_client: '{word}' is no client's name or id, and no name fits it; {hint}")
    return [own[k] if k in own else _by_pattern(model, patterns, name) for k, name in enumerate(names)]


def _by_pattern(model: Model, patterns: dict[str, Model], name: str) -> Model:
    fitting = {word: one for word, one in patterns.items() if fnmatchcase(name, word)}
    found = list(fitting.values()) or [model.common]
    if any(one != found[0] for one in found):
        words = " and ".join(f"'{word}'" for word in fitting)
        raise UsageError(f"model.per_client: client '{name}' fits {words}, which name different models: give its own")
    return found[0]
