"""`trunkline doctor`: checks what a node needs on this machine. Each check takes well under a second or has a timeout.

Checks are read-only: they create no directory, no key and no table. One file per subject; `examination` has the order.
"""
