"""The experiments of Hochreiter and Schmidhuber (1997): tasks, networks, training."""
