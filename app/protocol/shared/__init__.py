"""Many sessions in front of one process, kept apart: ids, subscriptions, log levels, tasks, turns. Pure, like all of
`protocol`."""
