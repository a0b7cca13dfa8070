"""Networks for tokens and for tables, and low-rank adapters on any of them."""

import pytest
import torch
from torch import nn

from polyfed.errors import UsageError
from polyfed.models.base import models
from polyfed.models.lora import LowRank, merge_layers
from polyfed.models.text import Attention
from polyfed.params import Layout, lora, named

TEXT = ["text-bag", "text-transformer"]
TOKENS = torch.tensor([[3, 1, 4, 0, 0, 0], [1, 5, 2, 6, 5, 3], [0, 0, 0, 0, 0, 0]])


def net_of(name, shape=(6,), **values):
    torch.manual_seed(0)
    return models.build({"name": name, "width": 0.25, **values}, "model").made(shape, 3)


@pytest.mark.parametrize("name", TEXT)
def test_a_text_model_keeps_the_promises_of_every_model(name):
    net = net_of(name, ids=9).eval()
    logits = net(TOKENS)
    assert logits.shape == (3, 3)
    assert logits.isfinite().all()  # of padding alone, too
    assert type(net.head) is nn.Linear
    assert torch.equal(logits, net.head(net.last(net.trunk(TOKENS))))
    assert net.features(TOKENS).shape == (3, net.head.in_features)
    parts = [key.split(".")[0] for key, _ in net.named_parameters()]
    assert parts == sorted(parts, key=["trunk", "last", "head"].index)


@pytest.mark.parametrize("name", TEXT)
def test_padding_changes_no_answer(name):
    net = net_of(name, ids=9).eval()
    alone = net(TOKENS)
    for module in net.modules():
        if isinstance(module, nn.Embedding):
            with torch.no_grad():
                module.weight[0] = 7.0  # what padding looks like must not matter
    torch.testing.assert_close(net(TOKENS), alone, rtol=1e-5, atol=1e-6)


def test_order_matters_to_the_transformer_alone():
    turned = TOKENS[1:2].flip(1)
    for name, differs in (("text-bag", False), ("text-transformer", True)):
        net = net_of(name, ids=9).eval()
        assert torch.allclose(net(TOKENS[1:2]), net(turned), atol=1e-6) != differs


def test_a_table_model_tells_categories_apart_and_keeps_numbers():
    net = net_of("table-mlp", shape=(4,), categories=(2, 3)).eval()
    x = torch.tensor([[1.0, 2.0, 0.5, -1.0], [2.0, 2.0, 0.5, -1.0], [0.0, 0.0, 0.5, -1.0], [1.0, 2.0, 0.6, -1.0]])
    logits = net(x)
    assert len({tuple(row.tolist()) for row in logits}) == 4
    assert len(net.listens) == 2
    with pytest.raises(UsageError, match=r"data.categories or model.categories"):
        net_of("table-mlp", shape=(1,), categories=(2, 3))


@pytest.mark.parametrize(
    ("name", "x"), [("text-transformer", TOKENS), ("text-bag", TOKENS), ("mlp", torch.randn(3, 6)), ("vgg8", None)]
)
def test_adapters_start_as_the_base_and_merge_to_the_same_answers(name, x):
    if x is None:
        with pytest.raises(UsageError, match="its body has none"):
            net_of("vgg8", shape=(3, 32, 32), lora={"rank": 2})
        return
    base, net = net_of(name).eval(), net_of(name, lora={"rank": 2, "alpha": 4}).eval()
    assert torch.equal(base(x), net(x))
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, LowRank):
                module.lora_b.normal_()
    told = net(x)
    assert not torch.allclose(told, base(x), atol=1e-3)
    merge_layers(net)
    assert not any(isinstance(module, LowRank) for module in net.modules())
    assert [n for n, _ in net.named_parameters()] == [n for n, _ in base.named_parameters()]
    torch.testing.assert_close(net(x), told, rtol=1e-5, atol=1e-5)


def test_an_adapter_counts_alpha_over_rank_times():
    layer = LowRank(nn.Linear(3, 2), rank=2, alpha=6.0)
    with torch.no_grad():
        layer.lora_a.copy_(torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
        layer.lora_b.copy_(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
    x = torch.tensor([[1.0, 10.0, 100.0]])
    told = layer(x) - nn.functional.linear(x, layer.weight, layer.bias)
    torch.testing.assert_close(told, torch.tensor([[3.0, 60.0]]))  # 6 / 2 times (1, 20)


def test_attention_is_the_scaled_product_of_every_head():
    torch.manual_seed(0)
    attention, h = Attention(8, 2), torch.randn(3, 5, 8)
    there = torch.tensor([[1.0] * 5, [1.0, 1.0, 0.0, 0.0, 0.0], [1.0] * 4 + [0.0]])
    q, k, v = (layer(h).view(3, 5, 2, 4).transpose(1, 2) for layer in (attention.query, attention.key, attention.value))
    seen = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=there[:, None, None, :].bool())
    torch.testing.assert_close(attention(h, there), attention.out(seen.transpose(1, 2).reshape(3, 5, 8)))


def test_adapters_are_a_slice_on_the_layers_that_are_named():
    net = net_of("text-transformer", lora={"rank": 2, "on": ["*.attention.query", "*.attention.value"]})
    found = [entry.name for entry in Layout(net).floats if lora.test(entry)]
    assert len(found) == 2 * 2 * 2  # blocks, layers, A and B
    assert all(".query." in name or ".value." in name for name in found)
    queries = [entry.name for entry in Layout(net).floats if named("*.query.lora_a", "*.query.lora_b").test(entry)]
    assert queries == [name for name in found if ".query." in name]
    with pytest.raises(UsageError, match=r"no linear layer in the body of model 'mlp': it has trunk.fc1, last.fc2"):
        net_of("mlp", lora={"rank": 2, "on": "*.query"})
