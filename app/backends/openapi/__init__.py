"""Documents of OpenAPI: read in a process of their own when a backend is registered, and kept as what was made of them.
Sessions with an API are in `backends.upstreams`."""
