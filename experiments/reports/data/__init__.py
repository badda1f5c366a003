"""Results on data sets."""
