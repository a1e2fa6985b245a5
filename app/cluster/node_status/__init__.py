"""What administrators see of this node (sessions, processes, use), and what their changes do to it (`change_effects`).

The same over all nodes is in `app.cluster.all_nodes`.
"""
