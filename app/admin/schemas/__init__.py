"""The bodies of the REST API: strict models, in which every string and list has a maximum size."""
