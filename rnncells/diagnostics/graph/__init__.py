"""The backward graph of a function, in the form of PyTorch's autograd graph.

`steps` groups equations into operations of PyTorch's size, and finds what each keeps,
`builder` adds a node for each, and `tape` runs the function of a `backward_graph`.
"""
