"""What can be typed: options, their checks, help, and what was probably meant. Plain data and light imports only: every
command reads it, and what a command needs besides is imported once it runs (`later`)."""
