"""The protocol without I/O: bytes in, messages and decisions out. No await, no clock, no logging, no framework."""
