"""Links whose process is given back, or stopped, while their session is idle."""
