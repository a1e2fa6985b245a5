"""Many sessions in front of one process: ids, subscriptions, log levels, tasks and turns of each are kept apart."""
