"""The bodies of the REST API: strict models, every string and list with its bound. No behaviour."""
