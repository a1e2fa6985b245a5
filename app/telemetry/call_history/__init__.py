"""The last calls of each tenant: who called what, how long it took and how it ended. Never arguments or results."""
