"""What administrators write, declared once: its members, limits and words. Tables, the REST API, the command line and
the sections of files are made of these declarations, by `storage.declared`, `admin.resource` and `cli.files.kinds`.
Imports nothing heavy: the command line reads them too.
"""
