"""Training on data sets: one trainer for all tasks."""
