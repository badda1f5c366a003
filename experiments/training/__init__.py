"""All trials of an experiment, presented with sequences until they have succeeded."""
