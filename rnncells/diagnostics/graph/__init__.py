"""The backward graph of a function, in the form of PyTorch's autograd graph.

The way from a function to its graph: `tracing` traces the function and names
its arguments, `steps` groups its equations into operations of PyTorch's size, `builder`
takes one after the other and adds a node for each, with its edges, and `saved` finds
the values that a node keeps. `nodes` and `backward_graph` are the data. `operations`
names and describes operations. `text` and `drawing` show a graph, and `tape` runs it.
"""
