"""The tasks on data sets, by their names in configs.

A task is a subclass of `Task` in a module with the name of the task. Its options are a
subclass of `DataTask` in `experiments/settings/data_tasks.py`.
"""

from importlib import import_module

from experiments.settings.data_tasks import DATA_TASKS
from experiments.supervised.task import Task


def _class_of(name: str) -> type[Task]:
    return Task.by_module[
        import_module(f"{__name__}.{name.replace('-', '_')}").__name__
    ]


TASKS = {name: _class_of(name) for name in DATA_TASKS}
