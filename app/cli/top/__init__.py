"""What goes on at this moment: the commands `top` and `problems`."""
