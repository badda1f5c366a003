"""Several processes, on one or several hosts, that train one run."""

import jax

from experiments.settings.options import DataFlags
from experiments.settings.rules import ConfigError


def join(flags: DataFlags) -> None:
    """Connects this process to the others; must run before the first computation.

    On CPUs, the processes communicate by gloo.

    Args:
      flags: the address of process 0, and the number of this process.

    Raises:
      ConfigError: the other processes do not answer.
    """
    try:
        jax.distributed.initialize(flags.coordinator, flags.processes, flags.process)
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"process {flags.process} cannot join the {flags.processes} processes at "
            f"`--coordinator {flags.coordinator}`: {error}"
        ) from error
