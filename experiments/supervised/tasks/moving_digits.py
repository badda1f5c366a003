"""Forecasting films of moving digits with an encoder and a forecaster.

The encoder reads the given frames. Its carry starts the forecaster, whose outputs are
its next inputs (Srivastava et al., 2015). As in Shi et al., 2015, "Convolutional LSTM
Network", a frame is cut into patches of 4 by 4 pixels, which become channels, and the
loss is the cross-entropy of the pixels. Difference: their forecaster has no inputs.
"""

from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import rnncells
from experiments.datasets import moving_digits
from experiments.datasets.digits import digits8x8
from experiments.settings.supervised import Network, Supervised
from experiments.supervised.network import cell_of, dtype_of
from experiments.supervised.task import Array, Task, evaluation_key

PATCH = 4
# Films of each evaluation.
TESTED = 500


class FilmNetwork(nn.Module):
    """An encoder and a forecaster of convolutional cells.

    Attributes:
      config: the section `[model]` of a config.
      channels: number of channels of a frame.
      dtype: type of the computation; None: float32.
    """

    config: Network
    channels: int
    dtype: Any = None

    def setup(self):
        """Makes both layers."""
        head = nn.Conv(self.channels, (1, 1))
        self.encoder = rnncells.RNN(rnncells.StackedCell(self._cells()))
        self.forecaster = rnncells.RNN(rnncells.StackedCell([*self._cells(), head]))

    def _cells(self) -> list[nn.Module]:
        kernel = self.config.kernel, self.config.kernel
        return [
            cell_of(self.config, self.dtype, kernel_size=kernel)
            for _ in range(self.config.layers)
        ]

    def __call__(
        self, given: Array, asked: int, targets: Array | None = None, rate: Any = None
    ) -> Array:
        """Returns the logits of the asked frames, `(batch, asked, *frame)`.

        Args:
          given: frames, `(batch, time, *frame)`, at least two.
          asked: number of frames to forecast.
          targets: the true frames, `(batch, asked, *frame)`, for teacher forcing.
          rate: share of the steps at which the forecaster sees the true frame.
        """
        carry, _ = self.encoder(given[:, :-1], return_carry=True)
        return self.forecaster.decode(
            given[:, -1],
            asked,
            feed=nn.sigmoid,
            initial_carry=carry,
            targets=targets,
            teacher_forcing_rate=rate,
        ).astype(jnp.float32)


class MovingDigitsTask(Task):
    """Films of two moving digits; see `Task`. Every batch is new.

    Args:
      experiment: the config.
    """

    def __init__(self, experiment: Supervised):
        self.options, self.seed = experiment.task, experiment.seed
        self.batch_size = experiment.training.batch
        self.updates = experiment.training.updates
        # Each split draws from its own digits.
        digits = digits8x8()._asdict()
        self.data = {split: images.images for split, images in digits.items()}
        self.model = FilmNetwork(experiment.model, PATCH**2, dtype_of(experiment))
        side = self.options.size // PATCH
        self.sample = jnp.zeros((1, 2, side, side, PATCH**2))

    def init(self, key: Array) -> Any:
        """Returns the initial parameters."""
        return self.model.init(key, self.sample, 1)["params"]

    def films(self, key: Array, digits: Array, count: int) -> Array:
        """Returns films of patches, `(count, time, height, width, channels)`."""
        frames = self.options.given + self.options.asked
        size = self.options.size
        films = moving_digits.sample(key, digits, count, size=size, frames=frames)
        return to_patches(films)

    def batch(self, data: Any, key: Array, update: Array) -> Array:
        """Returns random films of training digits."""
        key = jax.random.fold_in(key, update)
        return self.films(key, data["train"], self.batch_size)

    def loss(
        self, params: Any, batch: Array, carry: tuple, key: Array, update: Array
    ) -> tuple[Array, tuple]:
        """Returns the mean cross-entropy of a pixel of the asked frames."""
        given, targets = jnp.split(batch, [self.options.given], axis=1)
        forcing = {}
        if self.options.teacher_forcing:
            left = jnp.maximum(0.0, 1 - 2 * update / self.updates)
            forcing = {
                "targets": targets,
                "rate": self.options.teacher_forcing * left,
            }
        logits = self.model.apply(
            {"params": params},
            given,
            self.options.asked,
            **forcing,
            rngs={"teacher_forcing": key},
        )
        return optax.sigmoid_binary_cross_entropy(logits, targets).mean(), carry

    def evaluate(self, params: Any, data: Any, split: str) -> dict[str, Array]:
        """Returns the cross-entropy, and squared errors, also of simple forecasts.

        Returns:
          `loss`; `mse`, the mean squared error of a pixel; `mse_last_frame`, that of
          the last given frame; `mse_mean_given`, that of the mean of the given frames;
          `mse_constant`, that of the mean of all pixels.
        """
        key = evaluation_key(self.seed, split)
        films = self.films(key, data[split], TESTED)
        given, targets = jnp.split(films, [self.options.given], axis=1)
        logits = self.model.apply({"params": params}, given, self.options.asked)

        def error(answer: Array) -> Array:
            return jnp.mean((answer - targets) ** 2)

        return {
            "loss": optax.sigmoid_binary_cross_entropy(logits, targets).mean(),
            "mse": error(nn.sigmoid(logits)),
            "mse_last_frame": error(given[:, -1:]),
            "mse_mean_given": error(given.mean(1, keepdims=True)),
            "mse_constant": error(targets.mean()),
        }

    def save_pictures(self, params: Any, data: Any, folder: Path) -> None:
        """Writes a strip of frames and an animation of one test film."""
        # Imported here because training does not need matplotlib.
        from experiments.supervised.film import save_film

        key = evaluation_key(self.seed, "test")
        films = self.films(key, data["test"], 1)
        given = films[:, : self.options.given]
        logits = self.model.apply({"params": params}, given, self.options.asked)
        film, forecast = from_patches(films), from_patches(nn.sigmoid(logits))
        save_film(folder, np.asarray(film[0]), np.asarray(forecast[0]))


def to_patches(films: Array) -> Array:
    """Returns `(..., size, size, 1)` as `(..., size / 4, size / 4, 16)`."""
    *leading, height, width, _ = films.shape
    films = films.reshape(*leading, height // PATCH, PATCH, width // PATCH, PATCH)
    films = jnp.moveaxis(films, -3, -2)
    return films.reshape(*films.shape[:-2], PATCH**2)


def from_patches(films: Array) -> Array:
    """Returns `(..., height, width, 16)` as frames `(..., 4 height, 4 width)`."""
    *leading, height, width, _ = films.shape
    films = films.reshape(*leading, height, width, PATCH, PATCH)
    films = jnp.moveaxis(films, -2, -3)
    return films.reshape(*leading, height * PATCH, width * PATCH)
