"""The connection of a client that nobody knows yet: uvicorn's HTTP protocol with limits on bytes, time and number.

Everything here runs before a credential was looked at. It imports nothing of what answers requests but `app.http`.
"""
