"""What administrators write, declared once: its members, limits and words. Tables, the REST API, the command line and
the sections of files are made of these declarations, by `app.storage.declared`, `app.admin` (`_resource`) and
`app.cli.files.kinds`.
Imports nothing heavy: the command line reads them too.
"""
