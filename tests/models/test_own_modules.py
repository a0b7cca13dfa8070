"""A user's own nn.Module: as a class, an instance, a factory, by import path, and what is wrong with it."""

import functools
import pickle
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

from polyfed.errors import DataError, UsageError
from polyfed.models import Net, Wrapped, hold, models, own_model
from polyfed.models import own as room
from polyfed.rng import seeded

torch.set_num_threads(1)


class Importable(nn.Module):
    """Two layers of its own."""

    def __init__(self, shape, classes):
        super().__init__()
        self.head_first = nn.Linear(6, classes)  # registered first, used last
        self.body = nn.Linear(shape[0], 6)
        self.act = nn.ReLU()

    def forward(self, x):
        return self.head_first(self.act(self.body(x)))


class Plain(nn.Module):
    def __init__(self, width=5, scale=1.0, end=None):
        super().__init__()
        self.scale, self.end = scale, end or nn.Identity()
        self.stem = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.tail = nn.ModuleDict({"norm": nn.LayerNorm(8), "fc": nn.Linear(8, width)})

    def forward(self, x):
        return self.end(self.tail["fc"](self.tail["norm"](self.stem(x) * self.scale)))


def make(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), classes))


def refused(source, shape=(3, 4), classes=5, error=UsageError, **parts):
    with pytest.raises(error) as caught:
        hold(source, **parts).build(shape, classes)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def names(net):
    return [name for name, _ in net.named_parameters()]


def test_an_instance_keeps_its_weights_and_is_never_touched():
    torch.manual_seed(0)
    module = Plain().eval()
    x, before = torch.randn(4, 3, 4), {k: v.clone() for k, v in module.state_dict().items()}
    expected = module(x)
    model = hold(module)
    net, again = model.build((3, 4), 5), model.build((3, 4), 5)
    assert isinstance(net, Wrapped)
    assert net.training
    assert torch.equal(net.eval()(x), expected)
    assert type(net.head) is nn.Linear
    assert net.features(x).shape == (4, 8)
    assert torch.equal(net.head(net.last(net.trunk(x))), expected)
    assert names(net)[-2:] == ["head.weight", "head.bias"]
    assert all(name.startswith("trunk.") for name in names(net)[:-2])
    assert len(names(net)) == len(before) - 3  # BatchNorm's buffers
    with torch.no_grad():
        net.head.weight.zero_()
    assert torch.equal(again.head.weight, before["tail.fc.weight"])
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())
    assert type(module.tail["fc"]) is nn.Linear


def test_training_the_instance_afterwards_changes_nothing():
    module = Plain()
    model, first = hold(module), module.tail["fc"].weight.detach().clone()
    with torch.no_grad():
        module.tail["fc"].weight.add_(1)
    assert torch.equal(model.build((3, 4), 5).head.weight, first)
    assert hold(module) != model


def test_the_key_of_an_instance_is_its_content():
    def fresh(**kw):
        torch.manual_seed(1)
        return Plain(**kw)

    assert hold(fresh()) == hold(fresh()) == hold(fresh().eval())
    assert hold(fresh()) != hold(fresh(scale=2.0))
    assert hold(fresh()) != hold(fresh(end=nn.ReLU()))


def test_a_class_is_built_afresh_by_the_seed():
    model = hold(Importable, head="head_first")
    assert model.name == f"{__name__}:Importable"
    nets = []
    for seed in (0, 0, 1):
        with seeded(seed, "init"):
            nets.append(model.build((4,), 3))
    weights = [torch.cat([p.flatten() for p in net.parameters()]) for net in nets]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert pickle.loads(pickle.dumps(model)) == model
    assert models.build(model.dump(), "model") == model


def test_the_head_is_the_last_linear_layer_unless_named():
    assert "model.head" in refused(Importable, (4,), 3)
    net = hold(Importable, head="head_first").build((4,), 3)
    assert names(net) == ["trunk.body.weight", "trunk.body.bias", "head.weight", "head.bias"]
    assert net.head.in_features == 6


def test_named_heads_that_are_none():
    assert "has no linear layer 'fc'; it has: stem.1, tail.fc" in refused(Plain(), head="fc")
    assert "has no linear layer 'tail'" in refused(Plain(), head="tail")


def test_factories():
    model = hold(make)
    assert model.name == f"{__name__}:make"
    assert model.build((3, 4), 7).head.out_features == 7

    local = hold(lambda classes: nn.Sequential(nn.Flatten(), nn.Linear(12, classes)))
    other = hold(lambda classes: nn.Sequential(nn.Flatten(), nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, classes)))
    assert local.name == other.name == "own"
    assert local != other
    assert local.build((3, 4), 2).head.in_features == 12
    assert other.build((3, 4), 2).head.in_features == 9

    part = hold(functools.partial(Plain, width=4))
    assert part.build((3, 4), 4).head.out_features == 4


def test_a_class_inside_a_function_is_kept():
    class Local(nn.Linear):
        def __init__(self, classes):
            super().__init__(4, classes)

    model = hold(Local)
    assert model.name == "own"
    assert hold(Local) == model
    net = model.build((4,), 3)
    assert names(net) == ["head.weight", "head.bias"]  # a bare linear layer is all head
    assert net.features(torch.ones(2, 4)).shape == (2, 4)


def test_a_net_is_used_as_it_is():
    net = Net(nn.Flatten(), nn.Sequential(nn.Linear(12, 6), nn.ReLU()), nn.Linear(6, 5), listens=("last.1",))
    built = hold(net).build((3, 4), 5)
    assert type(built) is Net
    assert names(built) == ["last.0.weight", "last.0.bias", "head.weight", "head.bias"]
    assert built.listens == ("last.1",)
    assert "names its own parts" in refused(net, head="head")


def test_listens():
    net = hold(Plain(), listens=("stem.3",)).build((3, 4), 5)
    assert net.listens == ("trunk.stem.3",)
    assert isinstance(net.get_submodule("trunk.stem.3"), nn.ReLU)
    assert "has no module 'stem.9'" in refused(Plain(), listens=("stem.9",))


def test_lazy_layers():
    def lazy(classes):
        return nn.Sequential(nn.Flatten(), nn.LazyLinear(6), nn.ReLU(), nn.LazyLinear(classes))

    net = hold(lazy).build((3, 4), 2)
    assert net.head.in_features == 6
    assert net.trunk[1].in_features == 12
    assert hold(lazy(3)).build((3, 4), 3).head.out_features == 3


def test_what_is_wrong_with_a_module():
    assert "has no linear layer" in refused(nn.Sequential(nn.Conv1d(3, 5, 1), nn.AdaptiveAvgPool1d(1), nn.Flatten()))
    assert "gives outputs of shape (2, 6) for two samples, expected (2, 5)" in refused(Plain(width=6))
    assert "expected (2, 5)" in refused(nn.Linear(4, 5))  # rows of three
    assert "softmax" in refused(Plain(end=nn.LogSoftmax(1)))
    assert "fails on inputs of shape (2, 3, 5): RuntimeError" in refused(Plain(), shape=(3, 5))
    assert "needs at least one class" in refused(Plain(), classes=0)


def test_the_head_must_have_the_last_word():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.second = nn.Linear(4, 4)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(self.first(x))

    class Peeks(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            return x @ self.fc.weight.T

    for module in (Tied(), Peeks()):
        assert "does more with its head than end in it" in refused(module, (4,), 4)


def test_what_is_no_module_at_all():
    for thing in (3, "resnet", int, None):
        with pytest.raises(UsageError, match=r"a model must be a name, an nn\.Module, or a function that makes one"):
            hold(thing)
    assert "it made a int" in refused(lambda: 3)
    assert "called with no arguments" in refused(functools.partial(nn.Linear, 4))
    assert "called with shape" in refused(lambda shape, width: None)

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 5)

        def forward(self, x):
            return x, self.fc(x)

    assert "must return one tensor of logits, it returned a tuple" in refused(Pair())

    uncopyable = nn.Linear(4, 5)
    uncopyable.cache = uncopyable.weight * 1
    assert "give its class instead" in refused(uncopyable)


def test_not_in_this_process():
    model = hold(Plain())
    travelled = pickle.loads(pickle.dumps(model))
    assert travelled == model
    kept = room._held.pop(model.key)
    with pytest.raises(
        DataError, match="was given as a Python object and this process does not have it; pass it again"
    ):
        travelled.build((3, 4), 5)
    room._held[model.key] = kept
    assert isinstance(travelled.build((3, 4), 5), Wrapped)


def test_own_model_alone():
    model = own_model(Importable)
    assert model.__doc__ == "Two layers of its own."
    assert model(head="head_first").build((4,), 3).head.out_features == 3


SCRIPT = """
    import sys
    import torch
    from torch import nn
    from polyfed.models import hold, models

    class Mine(nn.Module):
        def __init__(self, classes=2):
            super().__init__()
            self.fc = nn.Linear(4, classes)
        def forward(self, x):
            return self.fc(x)

    instance = Mine()

    def factory(shape, classes):
        return nn.Linear(shape[0], classes)

    if __name__ == "__main__":
        torch.set_num_threads(1)
        model = hold(Mine)  # a script is never imported a second time
        assert model.name == "own" and model.key == "Mine", model
        assert model.build((4,), 3).head.out_features == 3
        print("fine")
"""


@pytest.fixture
def script(tmp_path):
    file = tmp_path / "script_with_models.py"
    file.write_text(textwrap.dedent(SCRIPT))
    return file


def test_classes_of_a_script_from_inside(script):
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.stdout == "fine\n", done.stderr


def test_classes_of_a_script_by_path(script):
    for name in ("Mine", "factory"):
        model = models.build(f"{script}:{name}", "model")
        assert model.build((4,), 3).head.out_features == 3
        assert pickle.loads(pickle.dumps(model)) == model
        assert model.dump() == {"name": f"{script}:{name}", "head": None, "listens": []}
    assert hold(models.build(f"{script}:Mine", "model").source()).name == "own"  # loaded by path, not importable
    one, two = (models.build(f"{script}:instance", "model").build((4,), 2) for _ in range(2))
    assert one is not two
    assert torch.equal(one.head.weight, two.head.weight)
    with pytest.raises(UsageError, match="cannot import model"):
        models.build(f"{script}:Missing", "model")


def test_a_class_loaded_again_is_not_taken_for_the_old_one(tmp_path, monkeypatch):
    import importlib

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    file, text = tmp_path / "reloaded_models.py", "from torch import nn\ndef make(): return nn.Linear({}, 2)\n"
    file.write_text(text.format(4))
    module = importlib.import_module("reloaded_models")
    assert hold(module.make).build((4,), 2).head.in_features == 4
    file.write_text(text.format(50))
    module = importlib.reload(module)
    assert hold(module.make).build((50,), 2).head.in_features == 50
