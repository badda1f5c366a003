"""The loops over time: `table.py` lists them, `request.py` says what each one gets.

All loops return the same values to rounding, and the gradients of the layer's
`gradient`.
"""
