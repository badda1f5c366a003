"""Moving digits: videos of two digits that bounce off the walls, to predict frames.

Reference: Srivastava, Mansimov and Salakhutdinov, 2015, "Unsupervised Learning of Video
Representations using LSTMs" (Moving MNIST). Differences: the digits are the 8 by 8
ones, enlarged, and frames have 32 by 32 pixels instead of 64 by 64.
"""

import jax
import jax.numpy as jnp

from experiments.settings.rules import require


def sample(
    key: jax.Array,
    digits: jax.Array,
    count: int,
    size: int = 32,
    frames: int = 20,
    *,
    scale: int = 2,
    per_frame: int = 2,
    speed: float = 0.1,
) -> jax.Array:
    """Returns random videos, `(count, frames, size, size, 1)`, float32, in [0, 1].

    Each digit is drawn with replacement. Its first position and its direction are
    uniformly distributed. Where digits overlap, the brighter pixel counts.

    Args:
      key: random key.
      digits: images to draw from, `(digits, rows, rows)`, in [0, 1]. For training, pass
        training digits only.
      count: number of videos.
      size: height and width of a frame, at least `scale * rows`. Default: 32.
      frames: number of frames. Default: 20.
      scale: every pixel of a digit becomes `scale` by `scale` pixels. Default: 2.
      per_frame: number of digits in a frame. Default: 2.
      speed: distance from one frame to the next, in [0, 1), relative to the space in
        which a digit can move, `size - scale * rows`. Default: 0.1, as in the program
        of Srivastava et al.

    Raises:
      ConfigError: an enlarged digit is larger than a frame, or digits are not square.
    """
    rows, columns = digits.shape[1:]
    require(rows == columns, f"Digits must be square, got {rows} by {columns} pixels.")
    space = size - scale * rows
    require(
        space >= 0,
        f"`size` must be at least {scale * rows} ({rows} pixels of a digit, enlarged "
        f"{scale} times), got {size}.",
    )
    keys = jax.random.split(key, 3)
    shape = count, per_frame
    which = jax.random.randint(keys[0], shape, 0, len(digits))
    position = jax.random.uniform(keys[1], (*shape, 2))
    angle = jax.random.uniform(keys[2], shape, maxval=2 * jnp.pi)
    velocity = speed * jnp.stack([jnp.sin(angle), jnp.cos(angle)], -1)
    # (frames, count, per_frame, 2)
    corners = jnp.floor(space * paths(position, velocity, frames)).astype(jnp.int32)
    enlarged = jnp.asarray(digits, jnp.float32).repeat(scale, 1).repeat(scale, 2)
    draw = jax.vmap(jax.vmap(_frame, (None, 0, None)), (0, 0, None))
    videos = draw(enlarged[which], jnp.moveaxis(corners, 0, 1), size)
    return videos[..., None]


def paths(position: jax.Array, velocity: jax.Array, frames: int) -> jax.Array:
    """Returns the position in every frame, `(frames, ...)`, in [0, 1].

    A position that would leave [0, 1] is at the wall in this frame, and its velocity
    changes sign, as in the program of Srivastava et al.

    Args:
      position: position in the first frame, in [0, 1].
      velocity: change of the position from one frame to the next, in (-1, 1).
      frames: number of frames.
    """

    def step(carry, _):
        position, velocity = carry
        moved = position + velocity
        is_outside = (moved <= 0) | (moved >= 1)
        velocity = jnp.where(is_outside, -velocity, velocity)
        return (jnp.clip(moved, 0, 1), velocity), position

    return jax.lax.scan(step, (position, velocity), length=frames)[1]


def _frame(images: jax.Array, corners: jax.Array, size: int) -> jax.Array:
    """Draws digits `(per_frame, d, d)` at corners `(per_frame, 2)` into one frame."""
    space = size - images.shape[-1]
    # A window of this image has the digit at any place.
    padded = jnp.pad(images, ((0, 0), (space, space), (space, space)))
    window = jax.vmap(lambda p, c: jax.lax.dynamic_slice(p, space - c, (size, size)))
    return window(padded, corners).max(0)
