"""`:check`: one process of a backend, what it says it offers, and what its sandbox kept from it."""
