"""Parts of an Exchange: waiting calls, deadlines, the backend's questions, and which stream gets a message."""
