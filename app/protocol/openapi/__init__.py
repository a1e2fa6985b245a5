"""HTTP APIs as tools, without I/O: a document of OpenAPI 3.0 or 3.1, or of Swagger 2.0, becomes tools (`making`), the
arguments of a call a request (`requests`), and its response a result (`results`)."""
