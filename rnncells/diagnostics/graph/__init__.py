"""The backward graph of a function, in the form of PyTorch's autograd graph.

The way from a function to its graph: `tracing` traces the function, `steps` groups its
equations into operations of PyTorch's size, `flows` finds where gradients go and adds a
node for each operation, and `saved` finds what each node keeps. `nodes` and
`backward_graph` are the data. `names` and `wording` name and describe operations.
`text`, `dot`, `mermaid` and `svg` show a graph, and `tape` runs it.
"""
