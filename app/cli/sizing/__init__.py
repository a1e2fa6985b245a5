"""`trunkline size`: how much memory, how many cores and nodes so many users need, and the settings for that."""
