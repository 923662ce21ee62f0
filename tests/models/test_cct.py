"""The compact transformer's parts: attention, layers that add to their tokens, the weighted mean at the end."""

import torch
from torch.nn import functional as F

from fedcore import models
from fedcore.config import Cct
from fedcore.models.cct import Attention
from fedcore.seeds import module_stream, torch_stream


def small():
    return models.build(Cct(name="cct", layers=2, heads=2, width=8), (3, 8, 8), 10, 0)


def test_the_attention_is_that_of_torch():
    with module_stream(0, "test"):
        ours = Attention(8, 2)
        theirs = torch.nn.MultiheadAttention(8, 2, bias=False, batch_first=True)
    # The scores of 0.02-sized weights are nearly equal: larger ones tell heads and scales apart.
    torch.nn.init.normal_(ours.mix.weight, generator=torch_stream(1, "test"))
    with torch.no_grad():
        theirs.in_proj_weight.copy_(ours.mix.weight)
        theirs.out_proj.weight.copy_(ours.out.weight)
    x = torch.randn(2, 5, 8, generator=torch_stream(0, "test"))
    torch.testing.assert_close(ours(x), theirs(x, x, x)[0])


def test_a_transformer_layer_adds_to_its_tokens():
    net = small()
    # Without what attention and the second linear layer give, only the normalisation between them is left.
    silent = ("attention.out", "narrow")
    params = {n: 0 * p if any(part in n for part in silent) else p for n, p in net.initial_params.items()}
    seen = {}
    keep = {name: lambda z, name=name: seen.setdefault(name, z) for name in ("tokens", "layer1")}
    net.features(params, torch.randn(2, 3, 8, 8, generator=torch_stream(0, "test")), keep)
    torch.testing.assert_close(seen["layer1"], F.layer_norm(seen["tokens"], (8,)))


def test_features_of_cct_are_a_mean_of_normalised_tokens():
    net = small()
    params = {n: torch.zeros_like(p) if ".score." in n else p for n, p in net.initial_params.items()}
    seen = []
    x = torch.randn(2, 3, 8, 8, generator=torch_stream(0, "test"))
    z = net.features(params, x, {"layer2": lambda z: seen.append(z) or z})
    # Scores of 0 weigh all tokens alike.
    torch.testing.assert_close(z, F.layer_norm(seen[0], (8,)).mean(1))
