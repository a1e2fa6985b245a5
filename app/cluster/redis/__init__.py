"""The shared connection to Redis: address, health, key check. Who uses it says what is stored there."""

REFUSES = "it refuses commands"  # how a problem of a connection begins that answers, but does nothing
