"""uvicorn's HTTP protocol with limits on bytes, time and connections, for clients that are not authenticated yet."""
