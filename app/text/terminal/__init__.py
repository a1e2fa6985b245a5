"""What is written on a terminal: text that cannot steer it, the line that says what takes so long, and log lines,
whatever their reader does."""
