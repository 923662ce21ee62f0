"""Convolutions as products and pooling as comparisons, beside PyTorch's own."""

import pytest
import torch
from torch.func import grad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from fedcore.engine.convolutions import as_products
from fedcore.engine.pooling import as_comparisons
from tests import toys

aten = torch.ops.aten
RULES = {**as_products(), **as_comparisons()}
CONVOLUTION, CONVOLUTION_GRADIENT = aten.convolution.default, aten.convolution_backward.default
POOLING, POOLING_GRADIENT = aten.max_pool2d_with_indices.default, aten.max_pool2d_with_indices_backward.default
PLAIN = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "transposed": False, "extra": [0, 0], "groups": 1}


def _drawn(*shape, dtype=torch.float64, innermost=False):
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64).to(dtype)
    return drawn.contiguous(memory_format=torch.channels_last) if innermost else drawn


def _arguments(**changes):
    return tuple({**PLAIN, **changes}.values())


SHAPES = {
    "one channel": (1, {}),
    "padding": (3, {"padding": [2, 1]}),
    "one side padded": (2, {"padding": [0, 1]}),
    "strides": (2, {"stride": [2, 1], "padding": [1, 1]}),
}


@pytest.mark.parametrize("innermost", [False, True], ids=["as it comes", "channels innermost"])
@pytest.mark.parametrize("case", SHAPES)
def test_a_convolution_and_its_gradients_are_pytorchs(case, innermost):
    channels, changes = SHAPES[case]
    arguments = _arguments(**changes)
    x, weight, bias = _drawn(3, channels, 9, 8, innermost=innermost), _drawn(4, channels, 5, 3), _drawn(4)
    expected = aten.convolution(x, weight, bias, *arguments)
    torch.testing.assert_close(RULES[CONVOLUTION](x, weight, bias, *arguments), expected)
    without = aten.convolution(x, weight, None, *arguments)
    torch.testing.assert_close(RULES[CONVOLUTION](x, weight, None, *arguments), without)
    slopes = _drawn(*expected.shape, innermost=innermost)
    of_inputs = changes.get("stride", [1, 1]) == [1, 1]
    wanted = [of_inputs, True, True]
    expected = aten.convolution_backward(slopes, x, weight, [4], *arguments, wanted)
    found = RULES[CONVOLUTION_GRADIENT](slopes, x, weight, [4], *arguments, wanted)
    assert (found[0] is None) != of_inputs
    for one, other in zip(found, expected, strict=True):
        assert one is None or torch.allclose(one, other, atol=1e-12)


def test_only_what_is_wanted_is_made():
    x, weight = _drawn(2, 1, 6, 6), _drawn(3, 1, 3, 3)
    slopes = _drawn(2, 3, 4, 4)
    for wanted in ([True, False, False], [False, True, False], [False, False, True]):
        found = RULES[CONVOLUTION_GRADIENT](slopes, x, weight, [3], *_arguments(), wanted)
        assert [f is not None for f in found] == wanted


OTHERS = {
    "patches of many numbers": ((2, 8, 6, 6), (4, 8, 3, 3), {}),
    "groups": ((2, 2, 6, 6), (4, 1, 3, 3), {"groups": 2}),
    "holes": ((2, 1, 8, 8), (4, 1, 3, 3), {"dilation": [2, 2]}),
    "transposed": ((2, 4, 6, 6), (4, 1, 3, 3), {"transposed": True}),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_convolutions_stay(case):
    shape, kernel, changes = OTHERS[case]
    x, weight, arguments = _drawn(*shape), _drawn(*kernel), _arguments(**changes)
    assert RULES[CONVOLUTION](x, weight, None, *arguments) is NotImplemented
    slopes = _drawn(*aten.convolution(x, weight, None, *arguments).shape)
    given = (slopes, x, weight, None, *arguments, [True, True, False])
    assert RULES[CONVOLUTION_GRADIENT](*given) is NotImplemented


def test_a_series_stays():
    arguments = ([1], [0], [1], False, [0], 1)
    assert RULES[CONVOLUTION](_drawn(2, 1, 6), _drawn(4, 1, 3), None, *arguments) is NotImplemented


def test_the_gradient_of_inputs_that_were_skipped_stays():
    given = (_drawn(2, 3, 2, 2), _drawn(2, 1, 5, 5), _drawn(3, 1, 3, 3), None, *_arguments(stride=[2, 2]))
    assert RULES[CONVOLUTION_GRADIENT](*given, [True, True, False]) is NotImplemented


def test_in_bfloat16_every_plain_convolution_is_a_product():
    x, weight = _drawn(2, 8, 6, 6, dtype=torch.bfloat16), _drawn(4, 8, 3, 3, dtype=torch.bfloat16)
    found = RULES[CONVOLUTION](x, weight, None, *_arguments())
    assert found.dtype == torch.bfloat16
    expected = aten.convolution(x.float(), weight.float(), None, *_arguments())
    assert (found.float() - expected).abs().max() < 0.01 * expected.abs().max()


WINDOWS = {
    "2x2": (2, None, (6, 8)),
    "2x3": ((2, 3), (2, 3), (6, 9)),
    "left over": (2, 2, (7, 5)),
    "below": (2, 2, (7, 6)),
}


@pytest.mark.parametrize("case", WINDOWS)
def test_a_maximum_and_its_gradient_are_pytorchs(case):
    kernel, stride, size = WINDOWS[case]
    # Few different numbers, as rectifiers make many zeros: of equal ones the first gets the gradient.
    x = torch.randint(0, 3, (3, 4, *size), generator=torch.Generator().manual_seed(1)).double()

    expected = F.max_pool2d(x, kernel, stride)
    slopes = _drawn(*expected.shape)

    def pooled(x):
        values = F.max_pool2d(x, kernel, stride)
        return (values * slopes).sum(), values

    graph = make_fx(grad(pooled, has_aux=True), decomposition_table=RULES)(x)
    assert not {POOLING, POOLING_GRADIENT} & {node.target for node in graph.graph.nodes}
    gradient, values = graph(x)
    assert torch.equal(values, expected)
    assert torch.equal(gradient, grad(pooled, has_aux=True)(x)[0])


def test_a_maximum_passes_on_what_is_no_number():
    x = torch.zeros(1, 1, 2, 4)
    x[0, 0, 1, 0] = x[0, 0, 0, 2] = float("nan")
    values, _ = RULES[POOLING](x, [2, 2])
    assert values.isnan().all()


@pytest.mark.parametrize(
    "arguments",
    [([3, 3], [2, 2]), ([2, 2], [2, 2], [1, 1]), ([2, 2], [2, 2], [0, 0], [2, 2]), ([2, 2], [], [0, 0], [1, 1], True)],
    ids=["overlapping", "padded", "with holes", "rounded up"],
)
def test_other_windows_stay(arguments):
    assert RULES[POOLING](_drawn(1, 1, 7, 7), *arguments) is NotImplemented


def test_compiled_steps_of_a_model_have_them(monkeypatch):
    """The whole way: a client's steps look at the patches once, and there is no convolution left of the first layer."""
    from fedcore.engine import inductor

    graphs = []
    real = inductor.fuse_updates
    monkeypatch.setattr(inductor, "fuse_updates", lambda graph: (graphs.append(graph), real(graph))[1])
    net = toys.net({"name": "cnn", "channels": [4, 6], "hidden": 16}, image=True)
    toys.training(None, toys.federation(image=True), net, rounds=1, compile="always").run()
    assert graphs
    for graph in graphs:
        targets = [node.target for node in graph.graph.nodes]
        assert not {POOLING, POOLING_GRADIENT} & set(targets)
        # Of the second layer, whose patches are of 100 numbers.
        steps = targets.count(CONVOLUTION)
        assert steps == targets.count(CONVOLUTION_GRADIENT) > 0
        # Patches are made once a step, for the layer's output and the gradient of its kernels.
        strided = [node for node in graph.graph.nodes if node.target is aten.as_strided.default]
        assert sum(len(node.args[1]) == 5 for node in strided) == steps
