"""How a run lives on disk, among processes, and until it is interrupted."""
