"""What is written on a terminal: text that cannot steer it, and the line that says what takes so long."""
