"""Tools for one event loop: an event, a timeout of the loop, work done once for all who ask at the same time."""
