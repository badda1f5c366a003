"""The optimizer of a config, from the parts of optax."""

import optax

from experiments.settings.supervised import Optimizer


def learning_rate(config: Optimizer, updates: int) -> optax.Schedule:
    """Returns the learning rate as a function of the number of changes of the weights.

    Args:
      config: the section `[optimizer]` of a config.
      updates: number of batches.
    """
    changes = max(updates // config.accumulate, 1)
    if config.schedule == "cosine":
        # optax needs at least one step of decay after the warm-up.
        return optax.warmup_cosine_decay_schedule(
            0.0 if config.warmup else config.rate,
            config.rate,
            config.warmup,
            max(changes, config.warmup + 1),
            config.rate * config.final,
        )
    return optax.warmup_constant_schedule(
        0.0 if config.warmup else config.rate, config.rate, config.warmup
    )


def optimizer_of(config: Optimizer, updates: int) -> optax.GradientTransformation:
    """Returns AdamW with clipping and accumulation."""
    rate = learning_rate(config, updates)
    optimizer = optax.chain(
        optax.clip_by_global_norm(config.clip),
        optax.adamw(rate, b2=config.b2, weight_decay=config.weight_decay),
    )
    if config.accumulate == 1:
        return optimizer
    return optax.MultiSteps(optimizer, config.accumulate).gradient_transformation()
