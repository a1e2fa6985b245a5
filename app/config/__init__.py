"""What an operator sets. `settings` is the table of environment variables, read by `environment`; `parsers`, `hosts`
and `urls` are the forms of values, `data_directory` is where data is when nobody says where.

Read where things are put together and on the command line; everything else is handed plain values.
"""
