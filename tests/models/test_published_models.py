"""VGG, residual networks, CCT, fastText and the HAR CNN: parameters, places, and training as one stack of clients."""

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch.func import grad, vmap
from torch.nn import functional as F

from fedcore import models
from fedcore.config import Cct, FastText, HarCnn, ResNet, Vgg11
from fedcore.config import Model as ModelConfig
from fedcore.models.cct import cct
from fedcore.models.fast_text import fast_text
from fedcore.models.har_cnn import har_cnn
from fedcore.models.resnet import resnet
from fedcore.models.vgg import vgg11
from fedcore.seeds import torch_stream
from tests import toys

IMAGE = (3, 32, 32)
VGG = Vgg11(name="vgg11")
CCT = Cct(name="cct")
TEXT = FastText(name="fast_text")
HAR = HarCnn(name="har_cnn")

SMALL = {
    "vgg11": ({"name": "vgg11", "width": 2}, IMAGE),
    "batch": ({"name": "resnet", "depth": 10, "width": 4}, (3, 16, 16)),
    "group": ({"name": "resnet", "depth": 10, "width": 4, "norm": "group", "stem": "stock"}, (3, 32, 32)),
    "bottleneck": ({"name": "resnet", "depth": 50, "width": 2, "norm": "group"}, (1, 8, 8)),
    "cct": ({"name": "cct", "layers": 2, "heads": 2, "width": 8}, (3, 8, 8)),
    "fast_text": ({"name": "fast_text", "vocabulary": 20, "width": 4}, (6,)),
    "har_cnn": ({"name": "har_cnn", "channels": [3, 4], "hidden": [8, 5]}, (9, 1, 30)),
}


def build(section, shape, classes=10):
    return models.build(TypeAdapter(ModelConfig).validate_python(section), shape, classes, 0)


def of_depth(depth, stem="cifar"):
    return ResNet(name="resnet", depth=depth, stem=stem)


@pytest.mark.parametrize(
    ("make", "config", "shape", "classes", "expected"),
    [
        # 9 * in * out + out of the eight convolutions, 512 * 10 + 10: FedBR's 9.226 M
        (vgg11, VGG, IMAGE, 10, 1_792 + 73_856 + 295_168 + 590_080 + 1_180_160 + 3 * 2_359_808 + 5_130),
        # Stem 9 * 3 * 64 + 128. A block of c channels has 18 c^2 + 4 c; one from c / 2 to c has
        # 9 c^2 / 2 + 9 c^2 + c^2 / 2 + 6 c = 14 c^2 + 6 c. Head 5,130.
        (resnet, of_depth(10), IMAGE, 10, 1_856 + 73_984 + 230_144 + 919_040 + 3_673_088 + 5_130),
        (
            resnet,
            of_depth(18),
            IMAGE,
            10,
            1_856 + 2 * 73_984 + 230_144 + 295_424 + 919_040 + 1_180_672 + 3_673_088 + 4_720_640 + 5_130,
        ),
        (
            resnet,
            of_depth(34),
            IMAGE,
            10,
            1_856 + 3 * 73_984 + 230_144 + 3 * 295_424 + 919_040 + 5 * 1_180_672 + 3_673_088 + 2 * 4_720_640 + 5_130,
        ),
        # Of i channels: 1x1 (i c), 3x3 (9 c^2), 1x1 (4 c^2), shortcut (4 i c), and 2 for each normalised one
        (
            resnet,
            of_depth(50),
            IMAGE,
            10,
            1_856
            + (75_008 + 2 * 70_400)
            + (379_392 + 3 * 280_064)
            + (1_512_448 + 5 * 1_117_184)
            + (6_039_552 + 2 * 4_462_592)
            + 20_490,
        ),
        # torchvision's 11,689,512 and 25,557,032 of 1000 classes, less 990 rows of the head
        (resnet, of_depth(18, "stock"), (3, 64, 64), 10, 11_689_512 - 990 * 513),
        (resnet, of_depth(50, "stock"), (3, 64, 64), 10, 25_557_032 - 990 * 2_049),
        # Convolution 27 * 256, positions 256 * 256, a layer 2 * 512 + 3 * 256^2 + 256^2 + 256 + 131,584 + 131,328,
        # last normalisation 512, pooling 257, head: 3.76 M in the paper's table 1
        (cct, CCT, IMAGE, 10, 6_912 + 65_536 + 7 * 526_336 + 512 + 257 + 2_570),
        # 98,635 * 32, 32 * 32 + 32, 32 * 4 + 4
        (fast_text, TEXT, (200,), 4, 3_156_320 + 1_056 + 132),
        # 9 * 32 * 9 + 32, 32 * 64 * 9 + 64, (64 * 26) * 1024 + 1024, 1024 * 512 + 512, 512 * 6 + 6
        (har_cnn, HAR, (9, 128), 6, 2_624 + 18_496 + 1_704_960 + 524_800 + 3_078),
        (har_cnn, HAR, (9, 1, 128), 6, 2_624 + 18_496 + 1_704_960 + 524_800 + 3_078),
    ],
)
def test_numbers_of_parameters(make, config, shape, classes, expected):
    with torch.device("meta"):
        module = make(config, shape, classes)
    assert sum(p.numel() for p in module.parameters()) == expected


@pytest.mark.parametrize(
    ("make", "config", "shape", "expected", "width"),
    [
        (
            vgg11,
            VGG,
            IMAGE,
            {
                f"stage{n}": s
                for n, s in enumerate([(64, 16, 16), (128, 8, 8), (256, 4, 4), (512, 2, 2), (512, 1, 1)], 1)
            },
            512,
        ),
        # DBE's six places
        (
            resnet,
            of_depth(18, "stock"),
            (3, 64, 64),
            {
                "stem": (64, 16, 16),
                "layer1": (64, 16, 16),
                "layer2": (128, 8, 8),
                "layer3": (256, 4, 4),
                "layer4": (512, 2, 2),
            },
            512,
        ),
        (
            resnet,
            of_depth(50),
            IMAGE,
            {
                "stem": (64, 32, 32),
                "layer1": (256, 32, 32),
                "layer2": (512, 16, 16),
                "layer3": (1024, 8, 8),
                "layer4": (2048, 4, 4),
            },
            2048,
        ),
        (cct, CCT, IMAGE, {"tokens": (256, 256), **{f"layer{n}": (256, 256) for n in range(1, 8)}}, 256),
        (fast_text, TEXT, (200,), {"mean": (32,)}, 32),
        (har_cnn, HAR, (9, 128), {"conv1": (32, 60), "conv2": (64, 26), "fc1": (1024,)}, 512),
    ],
)
def test_places(make, config, shape, expected, width):
    with torch.device("meta"):
        module = make(config, shape, 10)
    assert module.layer_shapes == expected
    assert list(module.layers) == list(expected)
    assert module.feature_dim == width


@pytest.mark.parametrize("case", SMALL)
def test_a_stack_of_clients_has_each_clients_gradients(case):
    section, shape = SMALL[case]
    net = build(section, shape, 3).to(torch.device("cpu"), torch.float64)
    generator = torch_stream(0, "test")

    def drawn(*size):
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    params = {n: p + 0.1 * drawn(2, *p.shape) for n, p in net.initial_params.items()}
    buffers = {n: torch.stack([b, b + 1]) for n, b in net.initial_buffers.items()}
    x = torch.randint(0, 20, (2, 3, *shape), generator=generator) if case == "fast_text" else drawn(2, 3, *shape)
    y = torch.tensor([[0, 1, 2], [2, 2, 0]])

    def loss(params, buffers, x, y):
        training = net.bind(buffers, training=True)
        value = F.cross_entropy(training.classify(params, training.features(params, x)), y)
        return value, dict(training.buffers)

    stacked, new_buffers = vmap(grad(loss, has_aux=True))(params, buffers, x, y)
    for client in range(2):
        own = [{n: t[client] for n, t in tensors.items()} for tensors in (params, buffers)]
        alone, own_buffers = grad(loss, has_aux=True)(*own, x[client], y[client])
        for name, value in alone.items():
            torch.testing.assert_close(stacked[name][client], value, msg=lambda text, name=name: f"{name}: {text}")
            # One number for all places changes no softmax over them: what there is of this gradient is rounding.
            assert name.endswith("score.bias") or value.abs().max() > 0, name
        for name, value in own_buffers.items():
            torch.testing.assert_close(new_buffers[name][client], value)
            assert not torch.equal(value, buffers[name][client]), name


def test_both_executors_train_a_residual_network_to_the_same_model():
    fed = toys.federation((5, 3), image=True)
    section = {"name": "resnet", "depth": 10, "width": 4, "norm": "group"}
    first, second = (
        toys.run(None, fed, toys.net(section, image=True), executor=executor, rounds=1, dtype=torch.float64)
        for executor in ("serial", "stacked")
    )
    assert toys.distance(first.server.params, second.server.params) < 1e-10
    assert toys.distance(first.server.params, toys.net(section, image=True).initial_params) > 1e-4


def test_a_block_adds_its_input_to_its_branch():
    net = build({"name": "resnet", "depth": 10, "width": 4}, (3, 16, 16))
    params = dict(net.initial_params)
    # A last normalisation that gives 0 leaves the shortcut alone, and the stem's output is rectified already.
    last = [n for n in params if n.startswith("body.3.branch.4.")]
    assert len(last) == 2
    params.update({n: torch.zeros_like(params[n]) for n in last})
    seen = {}
    keep = {name: lambda z, name=name: seen.setdefault(name, z) for name in ("stem", "layer1")}
    net.features(params, torch.randn(2, 3, 16, 16, generator=torch_stream(0, "test")), keep)
    assert torch.equal(seen["stem"], seen["layer1"])


def test_a_text_is_the_mean_of_its_words():
    net = build(*SMALL["fast_text"], 2)
    table = net.initial_params["body.0.embedding.weight"]
    seen = []
    for dtype in (torch.int64, torch.float32):
        x = torch.tensor([[3, 5, 3, 0, 0, 0], [7, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]], dtype=dtype)
        net.features(net.initial_params, x, {"mean": lambda z: seen.append(z) or z})
    torch.testing.assert_close(seen[0], torch.stack([(2 * table[3] + table[5]) / 3, table[7], 0 * table[7]]))
    assert torch.equal(seen[0], seen[1])


def test_a_series_is_the_same_one_pixel_high():
    section = SMALL["har_cnn"][0]
    x = torch.randn(2, 9, 30, generator=torch_stream(0, "test"))
    flat, high = build(section, (9, 30)), build(section, (9, 1, 30))
    z = flat.features(flat.initial_params, x)
    assert torch.equal(z, high.features(high.initial_params, x.unsqueeze(2)))


def test_signals_keep_their_size_at_the_start():
    # Torch's default convolutions, without normalisation, shrink what they are given to nothing.
    net = build({"name": "vgg11", "width": 8}, IMAGE)
    z = net.features(net.initial_params, torch.randn(4, *IMAGE, generator=torch_stream(0, "test")))
    assert 0.05 < float(z.square().mean().sqrt()) < 20


def test_residual_convolutions_start_as_the_paper_has_them():
    weight = build({"name": "resnet", "depth": 10, "width": 16}, IMAGE).initial_params["body.3.branch.3.weight"]
    # 2,304 numbers of variance 2 / (9 * 16): the estimate of the deviation is off by 1.5 percent.
    assert float(weight.std()) == pytest.approx((2 / 144) ** 0.5, rel=0.08)


@pytest.mark.parametrize(("width", "groups"), [(64, [8, 8, 8, 8]), (12, [4, 8, 8, 8]), (3, [1, 2, 4, 8])])
def test_groups_divide_the_channels(width, groups):
    with torch.device("meta"):
        module = resnet(ResNet(name="resnet", depth=10, width=width, norm="group"), IMAGE, 10)
    seen = {part.num_channels: part.num_groups for part in module.modules() if isinstance(part, torch.nn.GroupNorm)}
    assert seen == {width * 2**stage: count for stage, count in enumerate(groups)}


@pytest.mark.parametrize(
    ("case", "shape", "message"),
    [
        ("vgg11", (1, 28, 28), r"'vgg11' needs images of at least 32x32 pixels, got inputs of shape \(1, 28, 28\)"),
        ("batch", (5,), r"'resnet' needs images of at least 4x4 pixels, got inputs of shape \(5,\)"),
        ("cct", (1, 3, 8), r"'cct' needs images of at least 4x4 pixels, got inputs of shape \(1, 3, 8\)"),
        ("fast_text", IMAGE, r"'fast_text' needs rows of token ids, got inputs of shape \(3, 32, 32\)"),
        ("har_cnn", (561,), r"'har_cnn' needs series \[channels, 28 or more readings\], got inputs of shape \(561,\)"),
        ("har_cnn", (9, 27), r"got inputs of shape \(9, 27\); valid here: mlp"),
        ("har_cnn", IMAGE, r"got inputs of shape \(3, 32, 32\); valid here: mlp"),
    ],
)
def test_inputs_of_another_kind_are_refused(case, shape, message):
    with pytest.raises(ValueError, match=message):
        build(SMALL[case][0], shape)


def test_the_shortest_series_there_is():
    assert build(SMALL["har_cnn"][0], (9, 28)).layer_shapes["conv2"] == (4, 1)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"name": "cct", "width": 10, "heads": 4}, "width 10 is no multiple of heads 4; valid: 12"),
        ({"name": "resnet", "depth": 20}, "10, 18, 34 or 50"),
        ({"name": "resnet", "norm": "none"}, "'batch' or 'group'"),
    ],
)
def test_settings_that_make_no_model_are_refused(section, message):
    with pytest.raises(ValidationError, match=message):
        TypeAdapter(ModelConfig).validate_python(section)


def test_what_of_batch_normalisation_stays_with_the_client():
    section, shape = SMALL["batch"]
    assert not build(section, shape).stays_local
    local = build({**section, "batch_norm": "local_stats"}, shape).stays_local
    assert local == set(build(section, shape).initial_buffers)
    assert not build(*SMALL["group"]).has_batch_norm
