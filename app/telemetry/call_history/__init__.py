"""Call history: who called what, how long it took and how it ended, of each tenant's last calls. Never arguments or
results."""
