"""What makes several nodes one gateway: changes that take effect everywhere, sessions that survive their node, limits
and lists over all nodes. How nodes find each other is in `routing`, how they speak in `peers`, what each tells of
itself in `node_status`.
"""
