"""The endpoints of what goes on, and of what is wrong, at this moment."""
