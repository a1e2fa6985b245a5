"""What a process of a backend may do: its sandbox, the spawner that puts it there, and its way out to the network."""
