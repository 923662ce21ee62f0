"""The functional face of a model: parameters in, features and logits out."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedcore.config import BatchNormPolicy
from fedcore.models.products import by_products
from fedcore.types import Params

Change = Callable[[Tensor], Tensor]
_NO_CHANGES: Mapping[str, Change] = MappingProxyType({})
_WHOLE = slice(0, None)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class Model(nn.Module):
    """A network of two parts: ``body`` makes features [B, D] of inputs, ``head`` makes logits [B, Y] of features.

    Parameters
    ----------
    layers : mapping of str to int
        Names of places inside the body: how many of its modules come before each, ascending.
    input_shape : tuple of int
        Of one example.
    """

    def __init__(
        self,
        body: nn.Sequential,
        head: nn.Module,
        feature_dim: int,
        layers: Mapping[str, int],
        input_shape: tuple[int, ...],
    ):
        super().__init__()
        self.body = body
        self.head = head
        self.feature_dim = feature_dim
        self.layers = dict(layers)
        self.input_shape = input_shape
        self.layer_shapes = _shapes(body, layers, input_shape)


@torch.no_grad()
def _shapes(body: nn.Sequential, layers: Mapping[str, int], input_shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Return the shape of one example's output at every named place."""
    before = body.training
    body.eval()
    shapes = {}
    z = torch.zeros(1, *input_shape)
    for number, part in enumerate(body, 1):
        z = part(z)
        shapes.update({name: tuple(z.shape[1:]) for name, count in layers.items() if count == number})
    body.train(before)
    return shapes


class _ThreadModules(threading.local):
    """A module for training and one for evaluation, of each thread's own: functional calls borrow its slots."""

    def __init__(self, template: Model):
        self.template = template
        self.by_mode = {True: copy.deepcopy(template).train(), False: copy.deepcopy(template).eval()}

    def __reduce__(self) -> tuple[type[_ThreadModules], tuple[Model]]:
        return _ThreadModules, (self.template,)  # to another process without what belongs to threads


class Net:
    """A `Model` whose parameters and buffers are arguments.

    Parameters
    ----------
    module : Model
        Its own tensors are the initial values.
    num_classes : int
    batch_norm : {"sync", "local_stats", "local_all"}
        What of batch normalisation stays with the client: nothing, the running statistics, everything.
    """

    def __init__(self, module: Model, num_classes: int, batch_norm: BatchNormPolicy = "sync"):
        self.num_classes = num_classes
        self.feature_dim = module.feature_dim
        self.input_shape = module.input_shape
        self.layer_shapes = module.layer_shapes
        self._layers = module.layers
        self.initial_params: Params = {n: p.detach().clone() for n, p in module.named_parameters()}
        # Step counters are of no use with a fixed momentum and are integers: never averaged, never sent.
        self.initial_buffers: Params = {
            n: b.detach().clone() for n, b in module.named_buffers() if not n.endswith("num_batches_tracked")
        }
        self.module_types = {
            f"{prefix}.{name}" if prefix else name: type(part)
            for prefix, part in module.named_modules()
            for name, _ in [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]
        }
        norm_names = {n for n, kind in self.module_types.items() if issubclass(kind, _NORMS)}
        self.has_batch_norm = bool(norm_names)
        self.stays_local = {
            "sync": frozenset[str](),
            "local_stats": frozenset(norm_names & set(self.initial_buffers)),
            "local_all": frozenset(norm_names),
        }[batch_norm]
        template = copy.deepcopy(module)
        for part in template.modules():
            if isinstance(part, _NORMS):
                part.num_batches_tracked = None
        self._modules = _ThreadModules(template)
        self._training = False
        self._ties = len(list(module.named_parameters(remove_duplicate=False))) > len(self.initial_params)
        self._has_images = any(isinstance(part, nn.Conv2d) for part in module.modules())
        self._reduced: torch.dtype | None = None  # of products and convolutions
        self._convolves_by_products = False
        self.buffers: Params = self.initial_buffers

    def to(self, device: torch.device, dtype: torch.dtype = torch.float32) -> Net:
        """Return this net with its tensors on `device`, of type `dtype`."""
        net = copy.copy(self)
        net.initial_params = {n: p.to(device, dtype) for n, p in self.initial_params.items()}
        net.initial_buffers = {n: b.to(device, dtype) for n, b in self.initial_buffers.items()}
        net._modules = _ThreadModules(copy.deepcopy(self._modules.template).to(device, dtype))
        net.buffers = net.initial_buffers
        return net

    def reduced(self, dtype: torch.dtype) -> Net:
        """Return this net with its products and convolutions in a type of fewer bits.

        What goes in and comes out, parameters included, is of the type it has anyway.
        """
        net = copy.copy(self)
        net._reduced = dtype
        return net

    def convolving_by_products(self) -> Net:
        """Return this net with its convolutions of images as products of patches and kernels."""
        net = copy.copy(self)
        net._convolves_by_products = True
        return net

    def bind(self, buffers: Mapping[str, Tensor], *, training: bool) -> Net:
        """Return this net with these buffers; in training mode `buffers` of the result holds the updated ones."""
        net = copy.copy(self)
        net.buffers = dict(buffers)
        net._training = training
        return net

    @property
    def has_convolutions(self) -> bool:
        """Whether it convolves images or series."""
        return any(issubclass(kind, nn.Conv1d | nn.Conv2d) for kind in self.module_types.values())

    def make_modules(self) -> None:
        """Make this thread's modules now: what traces a call must not find them being made."""
        _ = self._modules.by_mode

    def layout(self, tensor: Tensor) -> Tensor:
        """Return images and kernels [., C, H, W] with channels innermost, where a CPU convolves them; others as is."""
        if self._has_images and tensor.dim() == 4 and tensor.device.type == "cpu":
            laid_out = tensor.contiguous(memory_format=torch.channels_last)
            if tensor.shape[1] > 1:
                return laid_out
            # Of a single channel only the strides tell, and convolutions go by them.
            height, width = tensor.shape[2:]
            return laid_out.as_strided(tensor.shape, (height * width, 1, width, 1))
        return tensor

    def features(self, params: Mapping[str, Tensor], x: Tensor, changes: Mapping[str, Change] = _NO_CHANGES) -> Tensor:
        """Return the body's features [B, D] of inputs [B, ...].

        Parameters
        ----------
        changes : mapping of str to function, optional
            Gets the output of the layer of that name; what it returns goes on through the rest of the body.
        """
        begin = 0
        for name, count in self._layers.items():
            if name in changes:
                x = changes[name](self._call("body", params, x, slice(begin, count)))
                begin = count
        return self._call("body", params, x, slice(begin, None))

    def output(self, params: Mapping[str, Tensor], x: Tensor, layer: str | None) -> Tensor:
        """Return the output [B, ...] of a layer of the body on inputs [B, ...]; None is the whole body."""
        return self._call("body", params, x, slice(0, None if layer is None else self._layers[layer]))

    def classify(self, params: Mapping[str, Tensor], z: Tensor) -> Tensor:
        """Return the head's logits [B, Y] of features [B, D]."""
        return self._call("head", params, z)

    def layer_shape(self, layer: str | None) -> tuple[int, ...]:
        """Return the shape of one example's output of a layer; None is the whole body."""
        return (self.feature_dim,) if layer is None else self.layer_shapes[layer]

    def check_layer(self, layer: str | None, key: str = "layer") -> None:
        """Raise ValueError if there is no such layer; `key` is the parameter that names it."""
        if layer is not None and layer not in self.layer_shapes:
            known = ", ".join(self.layer_shapes) or "none but null, the whole body"
            raise ValueError(f"{key}: the model has no layer '{layer}'; valid: {known}")

    def _call(self, part: str, params: Mapping[str, Tensor], x: Tensor, stretch: slice = _WHOLE) -> Tensor:
        prefix = part + "."
        cut = len(prefix)
        tensors = {n[cut:]: p for n, p in params.items() if n.startswith(prefix)}
        buffers = {n: b for n, b in self.buffers.items() if n.startswith(prefix)}
        if self._training and buffers:
            # Training-mode normalisation updates its buffers in place: give it copies, and remember those.
            buffers = {n: b.clone() for n, b in buffers.items()}
            self.buffers = {**self.buffers, **buffers}
        tensors.update({n[cut:]: b for n, b in buffers.items()})
        module = getattr(self._modules.by_mode[self._training], part)
        if stretch != _WHOLE:
            module = nn.Sequential(OrderedDict(list(module.named_children())[stretch]))
            tensors = {n: t for n, t in tensors.items() if n.split(".", 1)[0] in module._modules}
        call: Callable[..., Tensor] = partial(
            functional_call, module, tensors, tie_weights=self._ties
        )  # looking for ties takes its time
        if self._convolves_by_products:
            call = by_products(call)
        if self._reduced is None:
            result: Tensor = call(args=(x,))
            return result
        # Without the cache: it would keep casts of a client's parameters for the next one's.
        with torch.autocast(x.device.type, self._reduced, cache_enabled=False):
            result = call(args=(x,))
        return result.to(x.dtype) if x.is_floating_point() else result.float()
