"""What identifies the data of a run; see `Task.identity`."""

from pathlib import Path

from experiments.runs.checkpoint import saved_steps
from experiments.runs.folder import CHECKPOINTS, DATA, read_json, to_json, write
from experiments.settings.rules import ConfigError
from experiments.supervised.task import Task


def note_identity(folder: Path, task: Task) -> None:
    """Writes what identifies the data of a run; compares it if the run is resumed.

    Args:
      folder: folder of the run.
      task: its task.

    Raises:
      ConfigError: the data have changed since the run was started, or the file in the
        folder is missing, damaged or cannot be written.
    """
    path, now = folder / DATA, dict(task.identity)
    if not now:
        return
    if saved_steps(folder / CHECKPOINTS):
        before = read_json(path) if path.is_file() else None
        if not isinstance(before, dict) or before.keys() != now.keys():
            raise ConfigError(
                f"{path} is missing or damaged. Pass --overwrite to start again."
            )
        is_same = before["sha256"] == now["sha256"]
        if is_same and before != now:
            raise ConfigError(f"{path} is damaged. Pass --overwrite to start again.")
        if not is_same:
            raise ConfigError(
                f"{task.origin} has changed since the run in `{folder}` was started: "
                f"expected sha256 {before['sha256']}, got {now['sha256']}. Restore it "
                "to go on, or pass --overwrite to start again."
            )
    write(path, to_json(now))
