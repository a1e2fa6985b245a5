"""What an operator sets: environment variables (`settings`), and the forms of URL that they may have (`urls`).

Read where things are put together and on the command line; everything else is handed plain values.
"""
