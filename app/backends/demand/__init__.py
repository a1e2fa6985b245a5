"""How many warm processes a backend with `warm: auto` needs."""
