"""The console: pages for people at /console, which show what REST answers to whoever has signed in."""
