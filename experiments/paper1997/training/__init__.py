"""Training of all trials of an experiment until they succeed."""
