"""The league: every cell of the library on a few tasks, with equal parameter budgets.

Nothing here imports jax.
"""

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from experiments.settings.rules import Count, settings
from experiments.settings.supervised import Supervised


@settings
class Budget:
    """The section `[league]` of a file in `configs/league`."""

    parameters: Count
    """Largest number of parameters of a network, at least 1."""
    cells: tuple[str, ...] = ()
    """Classes of the cells; empty: all cells of the league."""


@dataclass(frozen=True, kw_only=True)
class LeagueTask:
    """A task of the league.

    Attributes:
      name: name of its file.
      budget: the section `[league]`.
      experiment: the other sections. `model.cell` and `model.features` are those of one
        of the networks; see `of`.
    """

    name: str
    budget: Budget
    experiment: Supervised

    def of(self, cell: str, features: int) -> Supervised:
        """Returns the experiment of one cell.

        Args:
          cell: class of the cell.
          features: number of units.
        """
        model = dataclasses.replace(self.experiment.model, cell=cell, features=features)
        return dataclasses.replace(self.experiment, model=model)

    def is_of(self, cell: str, config: dict[str, Any]) -> bool:
        """Says whether a run has the settings of this task.

        Args:
          cell: class of the cell.
          config: the config of the run, as JSON types. The width and the published
            figure can differ: the other settings decide the width.
        """
        features = config["model"].get("features")
        if type(features) is not int:
            return False
        expected = dataclasses.asdict(self.of(cell, features))
        expected["published"] = config["published"]
        return config == json.loads(json.dumps(expected))

    def settings(self) -> dict[str, Any]:
        """Returns the budget and all settings that the cells share, as JSON types."""
        table = {"league": dataclasses.asdict(self.budget)}
        table |= dataclasses.asdict(self.experiment)
        for name in ("cell", "features"):
            del table["model"][name]
        return json.loads(json.dumps(table))
