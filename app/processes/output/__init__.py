"""What a process writes that is no message: banners on stdout, and stderr."""
