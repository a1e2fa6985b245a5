"""Images of containers that a backend's command names: recognised, resolved to an id, and started by the container
engine that the platform names (CONTAINER_ENGINE)."""
