"""What is looked for, and what it becomes: rules RC01 to RC13."""
