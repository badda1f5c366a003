"""Gradients of a recurrence that are carried forward in time, row by row."""
