"""The shared connection to Redis: address, health, key check. Who uses it says what is stored there."""
