"""Paths that no sandbox opens, and those of which each has its own."""

# Never opened, whoever asks: sockets of other services, other processes, secrets of the machine.
NEVER = ("/proc", "/sys", "/dev", "/run", "/boot", "/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/ssh")
OWN_IN_EVERY_SANDBOX = ("/", "/tmp", "/tmp/home", "/var/tmp")  # noqa: S108
