"""Sessions in which nothing goes on: which of them give their process back, and which end."""
