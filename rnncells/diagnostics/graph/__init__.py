"""The backward graph of a function, in the form of PyTorch's autograd graph.

The way from a function to its graph: `tracing` traces the function, `arguments` names
its arguments, `steps` groups its equations into operations of PyTorch's size,
`building` takes one after the other, `flows` finds where their gradients go and adds a
node for each, and `saved` finds what a node keeps. `nodes` and `backward_graph` are the
data. `names` and `wording` name and describe operations. `text`, `dot`, `mermaid` and
`svg` show a graph, and `tape` runs it.
"""
