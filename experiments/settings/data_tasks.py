"""The options of the tasks on data sets: the section `[task]` of a config.

A config can choose every subclass of `DataTask`, by its name.
"""

from functools import reduce
from operator import or_
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from experiments.settings.rules import Count, Share, require, task_settings


class DataTask:
    """Base of the options.

    Attributes:
      has_symbols: whether inputs are symbols, which can have an embedding.
      has_films: whether inputs are films, which convolutional cells read.
      metrics: names of the metrics of each split.
      other_metrics: other metrics, each with the name of its union of splits.
    """

    has_symbols: ClassVar[bool] = False
    has_films: ClassVar[bool] = False
    metrics: ClassVar[tuple[str, ...]] = ("loss", "accuracy")
    other_metrics: ClassVar[tuple[str, ...]] = ()

    def check_network(self, network: Any) -> None:
        """Checks that the task can use a network.

        Raises:
          ConfigError: it cannot, or it ignores an option that is not the default.
        """
        default, got = type(network).embedding, network.embedding
        require(
            self.has_symbols or got == default,
            f"`model.embedding` must be {default} for {self.name}, whose inputs are "
            f"not symbols, got {got}.",
        )
        default, got = type(network).kernel, network.kernel
        require(
            self.has_films or got == default,
            f"`model.kernel` must be {default}, the default, for {self.name}, which "
            f"has no convolutional cells, got {got}.",
        )


@task_settings
class CharLM(DataTask):
    """Predicting the next character of a text."""

    has_symbols: ClassVar[bool] = True
    metrics: ClassVar[tuple[str, ...]] = ("loss",)
    other_metrics: ClassVar[tuple[str, ...]] = ("both.loss",)

    file: str = ""
    """A text file in UTF-8 with 320 characters or more, relative to the working
    directory. The first 90 % are for training, 5 % for validation, 5 % for the test.
    Empty: the plays of Shakespeare in experiments/data."""
    window: Count = 128
    """Steps of truncated backpropagation through time, at least 1. The carry goes on to
    the next window."""
    documents: bool = True
    """Whether the carry is reset where a document, here a play, begins. A text file is
    one document."""

    def __post_init__(self):
        require(
            self.file.isprintable(),
            f"`file` must be a path of printable characters, got {ascii(self.file)}.",
        )

    def check_network(self, network: Any) -> None:
        super().check_network(network)
        require(
            not network.bidirectional,
            "`model.bidirectional` must be false in a language model, got true.",
        )
        require(
            network.library == "rnncells" or not self.documents,
            "`task.documents` must be false if `model.library` is 'flax', because "
            "flax.linen.RNN has no resets, got true.",
        )


@task_settings
class JapaneseVowels(DataTask):
    """Naming the speaker of a vowel, from sequences of 7 to 29 frames."""

    layout: Literal["padded", "packed", "bucketed"] = "padded"
    """How sequences of different lengths share an array. padded: a row for each, as
    long as the longest. packed: several in a row, with resets. bucketed: batches of
    similar lengths."""
    noise: Share = 0.0
    """Standard deviation of the noise on training inputs, in [0, 1)."""
    offset: Share = 0.0
    """Standard deviation of the noise that all frames of a training utterance share, in
    [0, 1)."""
    held_out: bool = True
    """Whether 54 of the 270 utterances for training are kept for validation. False: all
    are trained on, so validation only shows the fit, and `training.tested` must be
    'last'."""

    def check_network(self, network: Any) -> None:
        super().check_network(network)
        require(
            network.library == "rnncells" or self.layout != "packed",
            "`task.layout` must not be 'packed' if `model.library` is 'flax', because "
            "flax.linen.RNN has no resets.",
        )


@task_settings
class Pixels(DataTask):
    """Naming a handwritten digit, pixel by pixel."""

    data: Literal["digits", "mnist"] = "digits"
    """digits: 8x8 pixels, in experiments/data. mnist: 28x28 pixels, from your files."""
    folder: str = "experiments/data/mnist"
    """Folder of the four files of MNIST, with or without `.gz`."""
    order: Literal["pixels", "permuted", "rows"] = "pixels"
    """pixels: one pixel a step. permuted: in a fixed random order. rows: one row a
    step."""

    def __post_init__(self):
        require(
            self.data == "mnist" or self.folder == Pixels.folder,
            "`folder` is read only if `data` is 'mnist'; with 'digits', it must be "
            f"{Pixels.folder}, the default, got {self.folder}.",
        )


@task_settings
class Copying(DataTask):
    """Copying ten symbols after a number of blanks."""

    has_symbols: ClassVar[bool] = True

    lag: Count = 1000
    """Number of blanks, T, at least 1."""


@task_settings
class Adding(DataTask):
    """Adding the two marked numbers of a sequence."""

    metrics: ClassVar[tuple[str, ...]] = ("loss",)

    length: Annotated[int, Field(ge=2, lt=2**31)] = 100
    """Number of steps, T, at least 2."""


@task_settings
class OrderOfTwo(DataTask):
    """Classifying the order of two symbols in 100 to 110 steps, task 6a of 1997."""

    has_symbols: ClassVar[bool] = True


@task_settings
class MovingDigits(DataTask):
    """Forecasting a film of two moving digits."""

    has_films: ClassVar[bool] = True
    metrics: ClassVar[tuple[str, ...]] = ("loss", "mse")

    size: Annotated[int, Field(ge=24, lt=2**31)] = 32
    """Height and width of a frame in pixels, a multiple of 4, at least 24."""
    given: Annotated[int, Field(ge=2, lt=2**31)] = 10
    """Number of frames that the network sees, at least 2."""
    asked: Count = 10
    """Number of frames to forecast, at least 1."""
    teacher_forcing: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the training steps at which the forecaster sees the true frame in place
    of its own, at the start of training, in [0, 1]; it falls to 0 at half of the
    updates."""

    def __post_init__(self):
        require(self.size % 4 == 0, f"`size` must be a multiple of 4, got {self.size}.")

    def check_network(self, network: Any) -> None:
        super().check_network(network)
        unused = ("dropout", 0.0), ("bidirectional", False), ("library", "rnncells")
        unused += (("gradient", "bptt"),)
        for name, value in unused:
            require(
                getattr(network, name) == value,
                f"`model.{name}` must be {value} for films, got "
                f"{getattr(network, name)}.",
            )


DATA_TASKS = {task.name: task for task in DataTask.__subclasses__()}
AnyDataTask = reduce(or_, DATA_TASKS.values())
