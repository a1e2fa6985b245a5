"""The settings. `settings` is the table of environment variables, which `environment` reads; `parsers`, `hosts` and
`urls` check values; `data_directory` chooses the default directory.

Only start-up and the command line read settings; everything else receives plain values.
"""
