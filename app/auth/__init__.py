"""Authentication by API keys and tokens, and authorisation by scopes."""
