"""What the spawner knows of the processes that it has started, until nothing is left of them."""
