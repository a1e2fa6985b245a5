"""The commands `apply`, `plan` and `export`: what a gateway should have, in files. The command line hands over options,
the gateway is asked over REST; nothing here knows the database."""
