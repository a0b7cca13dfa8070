"""Which model is whose, and what a model with models of clients' own says of itself."""

import pickle

import pytest
from torch import nn

from polyfed.errors import UsageError
from polyfed.models import models
from polyfed.models.per_client import models_of
from polyfed.registry import specs_in

NAMES = ("a.b", "site-x", "site-y", "1")


def named(names=NAMES, **per_client) -> list[str]:
    """The names of the clients' models."""
    return [one.name for one in models_of(models.build({"name": "mlp", "per_client": per_client}, "model"), names)]


@pytest.mark.parametrize(
    ("per_client", "expected"),
    [
        ({}, ["mlp", "mlp", "mlp", "mlp"]),
        ({"a.b": "cnn"}, ["cnn", "mlp", "mlp", "mlp"]),
        ({"0": "cnn", "2": "lenet"}, ["cnn", "mlp", "lenet", "mlp"]),
        ({"1": "cnn"}, ["mlp", "mlp", "mlp", "cnn"]),  # a word that is a name and an id is a name
        ({"site-*": "cnn", "site-y": "lenet"}, ["mlp", "cnn", "lenet", "mlp"]),
        ({"site-y": "lenet", "site-*": "cnn"}, ["mlp", "cnn", "lenet", "mlp"]),  # in whatever order
        ({"site-?": "cnn", "*-x": {"name": "cnn"}}, ["mlp", "cnn", "cnn", "mlp"]),
    ],
)
def test_a_client_is_meant_by_name_then_by_id_then_by_a_pattern(per_client, expected) -> None:
    assert named(**per_client) == expected


@pytest.mark.parametrize(
    ("per_client", "words"),
    [
        ({"site-z": "cnn"}, "'site-z' is no client's name or id, and no name fits it; did you mean 'site-"),
        ({"4": "cnn"}, "'4' is no client's name or id"),
        ({"site-*": "cnn", "*-x": "lenet"}, "client 'site-x' fits 'site-*' and '*-x', which name different models"),
    ],
)
def test_a_word_that_means_nobody_or_too_much_is_refused(per_client, words) -> None:
    with pytest.raises(UsageError) as refused:
        named(**per_client)
    assert words in str(refused.value)


def test_a_model_with_models_of_clients_is_built_again_from_what_it_dumps() -> None:
    section = {"name": "mlp", "width": 0.5, "per_client": {"0": {"name": "lenet", "width": 0.25}, "x": "mlp"}}
    model = models.build(section, "model")
    assert models.build(model.dump(), "model") == model == pickle.loads(pickle.dumps(model))
    assert model.dump()["per_client"]["0"] == models.build({"name": "lenet", "width": 0.25}, "model").dump()
    assert "per_client" not in model.common.dump()
    assert [(one.name, one.width) for one in model.architectures] == [("mlp", 0.5), ("lenet", 0.25), ("mlp", 1.0)]
    assert [spec.name for spec in specs_in(model)] == ["mlp", "lenet", "mlp"]


def test_the_same_architecture_is_there_once() -> None:
    same = {"name": "mlp", "width": 0.5}
    model = models.build({**same, "per_client": {"0": same, "1": "cnn", "2": "cnn"}}, "model")
    assert [one.name for one in model.architectures] == ["mlp", "cnn"]


def test_a_module_given_from_python_is_a_clients_model_too() -> None:
    model = models.build({"name": "mlp", "per_client": {0: nn.Linear(4, 3)}}, "model")
    assert model.per_client["0"].build((4,), 3).head.weight.shape == (3, 4)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("cnn", "'model.per_client': give a mapping from clients to models"),
        ({0: {"name": "cnn", "wide": 2}}, "unknown key 'model.per_client.0.wide' for model 'cnn'"),
        ({0: "cnm"}, "unknown model 'cnm'"),
        ({0: 3}, "a model must be a name, an nn.Module, or a function"),
        ({0: {"name": "cnn", "per_client": {1: "mlp"}}}, "cannot have a per_client of its own"),
    ],
)
def test_what_is_no_mapping_to_models_is_refused_in_a_sentence(given, words) -> None:
    with pytest.raises(UsageError) as refused:
        models.build({"name": "mlp", "per_client": given}, "model")
    assert words in str(refused.value)
