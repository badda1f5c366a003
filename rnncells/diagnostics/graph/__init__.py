"""The backward graph of a function, in the form of PyTorch's autograd graph.

`steps` groups equations into operations of PyTorch's size, `builder` adds a node for
each, `saved` finds what a node keeps, and `tape` runs the `backward_graph`.
"""
