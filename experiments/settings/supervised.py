"""The fields of the files in `configs/data`: training on a data set with Adam.

A file becomes a frozen `Supervised`. Nothing here imports jax.
"""

from typing import Annotated, Literal

from pydantic import Field

from experiments.settings.data_tasks import AnyDataTask
from experiments.settings.rules import (
    Count,
    CountOrZero,
    NotNegative,
    Positive,
    Seed,
    Share,
    require,
    settings,
)
from experiments.settings.wording import nearest

SPLITS = "validation", "test"


@settings
class Network:
    """Recurrent layers, and a dense layer for their outputs."""

    cell: str = "LSTMCell"
    """Class of the cell in rnncells, such as GRUCell or, for films, ConvLSTMCell."""
    features: Count
    """Number of outputs of each layer, at least 1."""
    layers: Count = 1
    """Number of recurrent layers, at least 1."""
    bidirectional: bool = False
    """Whether each layer also runs from the last step to the first."""
    embedding: CountOrZero = 0
    """Size of the vectors of symbols, at least 0; 0: one-hot vectors."""
    dropout: Share = 0.0
    """Rate of dropout on the outputs of each layer, in [0, 1)."""
    forget_bias: NotNegative = 0.0
    """Initial bias of the forget gate of an LSTM (Gers et al., 2000), at least 0."""
    kernel: Count = 3
    """Size of the kernels of a convolutional cell, at least 1."""
    library: Literal["rnncells", "flax"] = "rnncells"
    """The library of the layers and cells. The parameters are the same."""
    gradient: str = "bptt"
    """How the gradient of the recurrent layers is formed: a class of
    rnncells.gradients, such as truncated-bptt or snap."""
    gradient_steps: CountOrZero = 0
    """Field `steps` of a gradient that has it, at least 0; 0: it has none."""

    def __post_init__(self):
        require(
            self.library == "rnncells" or self.gradient == "bptt",
            f"`gradient` must be 'bptt' if `library` is 'flax', got {self.gradient!r}.",
        )
        require(
            self.library == "rnncells" or not self.forget_bias,
            "`forget_bias` must be 0 if `library` is 'flax', whose cells initialize "
            f"all gates alike, got {self.forget_bias}.",
        )


@settings
class Optimizer:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""

    rate: Positive
    """Largest learning rate, > 0."""
    schedule: Literal["constant", "cosine"] = "cosine"
    """cosine: the rate falls to `final` times `rate` at the last update."""
    warmup: CountOrZero = 0
    """Changes of the weights in which the rate rises from 0, at least 0."""
    final: Share = 0.0
    """Share of the rate that is left at the end of the schedule, in [0, 1)."""
    b2: Share = 0.999
    """Decay of Adam's mean of squared gradients, in [0, 1)."""
    weight_decay: Share = 0.0
    """Weight decay, in [0, 1)."""
    clip: Positive = 1.0
    """Gradients with a larger norm are clipped to this norm, > 0."""
    accumulate: Count = 1
    """Batches whose mean gradient makes one change of the weights, at least 1. The loss
    of every batch is a mean of equally many terms, so the mean gradient of the batches
    is the gradient of one large batch."""
    ema: Share = 0.0
    """Decay of the moving average of the weights that is tested, in [0, 1); 0: none. It
    moves with each change of the weights, and faster at first."""

    def __post_init__(self):
        require(
            self.schedule == "cosine" or not self.final,
            "`final` must be 0 if `schedule` is 'constant', whose rate does not fall, "
            f"got {self.final}.",
        )


@settings
class Training:
    """How long to train, and when to test."""

    updates: Count
    """Number of batches to train on, at least 1."""
    batch: Count
    """Sequences in a batch, at least 1."""
    evaluate_every: Count
    """Updates between two evaluations on the validation split, at least 1."""
    patience: CountOrZero = 0
    """Training ends after this number of evaluations without a smaller validation loss
    of any network; 0: after the last update."""
    tested: Literal["best", "last"] = "best"
    """Which weights are tested. best: those with the smallest validation loss. last:
    those after the last update."""
    chunk: Count = 50
    """Updates in one compiled call, at least 1. Between two calls, a run can stop."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Type of the computation. Weights and the loss are float32."""


@settings
class Published:
    """A figure to compare with."""

    what: str = ""
    """Name of the figure, for example: test accuracy in percent; empty: there is
    none."""
    metric: str = "test.loss"
    """The metric of the result: its split and name, for example `test.accuracy`."""
    value: Annotated[float, Field(gt=-3.4e38, lt=3.4e38)] = 0.0
    """The figure."""
    source: str = ""
    """Where the figure was published, or how it was computed."""


@settings
class Supervised:
    """A network that is trained on a data set."""

    title: str
    """Short title of the experiment."""
    seed: Seed = 0
    """Random seed of all networks, in [0, 2**32)."""
    seeds: Count = 1
    """Number of networks to train at once, each with its own random stream, at least
    1."""
    published: Published = Published()
    task: Annotated[AnyDataTask, Field(discriminator="name")]
    model: Network
    optimizer: Optimizer
    training: Training

    def __post_init__(self):
        require(
            self.optimizer.accumulate <= self.training.updates,
            "`optimizer.accumulate` must be at most `training.updates` "
            f"{self.training.updates}, got {self.optimizer.accumulate}.",
        )
        require(
            getattr(self.task, "held_out", True) or self.training.tested == "last",
            "`training.tested` must be 'last' if `task.held_out` is false, got 'best'.",
        )
        known = [f"{split}.{name}" for split in SPLITS for name in self.task.metrics]
        known += self.task.other_metrics
        metric = self.published.metric
        require(
            metric in known,
            f"`published.metric` must be a metric of the task, got {metric!r}"
            f"{nearest(metric, known)}",
        )
        self.task.check_network(self.model)
