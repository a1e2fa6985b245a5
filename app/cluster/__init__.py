"""Several nodes: what each does so that together they are one gateway. A node that is alone needs none of it.

Changes that take effect everywhere, sessions that outlive their node, limits and lists over all nodes. How nodes find
each other is in `routing`, how they speak in `peers`.
"""
