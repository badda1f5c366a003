"""The loops over time: `table.py` lists them, `request.py` says what each one gets.

`RNN` makes a `StepRequest`, and `table.run` passes it to the first loop that takes the
options and can run the step. All loops return the same values to rounding, and the
gradients of the layer's `gradient`.
"""
