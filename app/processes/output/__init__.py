"""What a process writes: reading it in turns, what is no message (banners on stdout, stderr), and what helps."""
