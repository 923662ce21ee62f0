"""The ``train`` and ``compare`` sections, and the lines of ``methods``."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from fedcore.config.sections import Count, LearningRate, Section, Seed


class Augment(Section):
    """Random changes of training images, anew in every step; evaluation never sees them."""

    crop: Annotated[int, Field(ge=0)] = 0  # pixels of black border an image is cropped back from; 0: no crop
    flip: bool = False  # left and right with probability 1/2
    cutout: Annotated[int, Field(ge=0)] = 0  # pixels: the side of a square that is set to 0; 0: none

    @property
    def is_on(self) -> bool:
        """Whether anything is changed."""
        return bool(self.crop or self.flip or self.cutout)


class Ray(Section):
    """How ``executor: ray`` runs."""

    # host:port, ray://host:port or auto of a running cluster; null: processes of this machine, ended with the run.
    address: str | None = None
    # Uploads are added up one by one in client order, or first in groups where the clients train.
    aggregation: Literal["exact", "tree"] = "exact"
    # How each worker trains its clients; auto: stacked on a GPU, serial on a CPU.
    inside: Literal["auto", "serial", "stacked"] = "auto"


class Train(Section):
    """Local training, participation and where it runs."""

    rounds: Count = 60
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0  # cohort size / clients
    local_epochs: Count = 1
    local_steps: Count | None = None  # fixed number of local steps instead of epochs
    batch_size: Count = 10
    # A last batch that is not full: kept short, filled up with the client's own examples, or dropped.
    last_batch: Literal["keep", "wrap", "drop"] = "keep"
    sampling: Literal["epochs", "replacement"] = "epochs"
    lr: LearningRate = 0.05
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    lr_decay: Annotated[float, Field(gt=0, le=1)] = 1.0  # the learning rate is lr * lr_decay**n
    lr_decay_by: Literal["round", "participation"] = "round"  # n: rounds so far, or those the client took part in
    momentum_state: Literal["fresh", "kept"] = "fresh"  # of a client, at the start of its local training
    # Aggregation weights; auto: the method's own where its paper insists on some, else by examples.
    weighting: Literal["auto", "examples", "uniform"] = "auto"
    evaluate_every: Count = 1
    ensemble_every: Count | None = None  # rounds between scores of all clients' models together; None: never
    # Also score every client's own model of the round that was best on its *test* split; kept in memory.
    best_on_test: bool = False
    # After the rounds above, the clients that were never trained on join for so many more.
    newcomer_rounds: Annotated[int, Field(ge=0)] = 0
    newcomer_participation: Annotated[float, Field(ge=0, le=1)] = 0.0  # share of the other clients in each of those
    # What they start with of what stays with clients: the server's last values of it, the mean over the other clients,
    # or the initial values.
    newcomer_start: Literal["server", "mean", "initial"] = "server"
    augment: Augment = Augment()
    checkpoint_every: Count = 10
    executor: Literal["auto", "serial", "stacked", "ray"] = "auto"
    ray: Ray = Ray()
    # Local steps as compiled functions: where a run is long enough to earn it back, always, or never.
    compile: Literal["auto", "always", "never"] = "auto"
    # Of products and convolutions in local training, parameters stay single: `tf32` on NVIDIA GPUs from Ampere on,
    # `bfloat16` there and on CPUs. Aggregation and evaluation are always single.
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    # Of images in local training: `direct` is PyTorch's own, one in groups for clients side by side; `products` are of
    # patches and kernels.
    convolutions: Literal["direct", "products"] = "direct"
    workers: Count = 1  # clients that train side by side, on a core each; of executor serial, or ray's processes
    # Lanes of the stacked executor, on which clients train at the same time; None: as many as keep busy.
    block_size: Count | None = None
    # Where clients' states and own parameters are between rounds; disk: a file beside the checkpoint.
    store: Literal["memory", "disk"] = "memory"
    device: str = "auto"  # auto, cpu, cuda, cuda:0, ...

    @property
    def keeps_momentum(self) -> bool:
        """Whether a client's momentum goes on in its next round."""
        return self.momentum > 0 and self.momentum_state == "kept"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.sampling == "replacement" and self.local_steps is None:
            raise ValueError("sampling: replacement has no epochs; set local_steps")
        if self.evaluate_every > self.rounds:
            raise ValueError(f"evaluate_every ({self.evaluate_every}) must not exceed rounds ({self.rounds})")
        return self


class Compare(Section):
    """Which seeds are run, against whom the methods are compared, and the targets of rounds-to-accuracy.

    With `average`, the mean of so many last evaluated rounds is compared too: where few clients take part in a round,
    the server's model swings, and one round says little.
    """

    seeds: Annotated[list[Seed], Field(min_length=1)] = [0]
    baseline: str = "fedavg"
    targets: list[Annotated[float, Field(gt=0, lt=1)]] = []
    average: Annotated[int, Field(ge=2)] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds must differ, got {self.seeds}")
        return self


class MethodBlock(Section):
    """One line of the comparison: a method, its add-ons, and what of ``train`` it overrides.

    Every other key is a hyper-parameter of the method; `fedcore.compose` checks those.
    """

    model_config = ConfigDict(extra="allow")

    method: str | None = None
    add: dict[str, dict[str, Any]] = {}
    train: dict[str, Any] = {}

    @property
    def settings(self) -> dict[str, Any]:
        """The method's own hyper-parameters."""
        return dict(self.model_extra or {})
