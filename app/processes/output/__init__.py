"""What a process writes: reading it in turns, and what is no message: banners on stdout, and stderr."""
