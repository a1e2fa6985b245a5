"""`tools` and `call`: trying a tool from the shell, over the address that every client uses."""
