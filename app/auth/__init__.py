"""Authentication by API keys and tokens, and authorisation by scopes."""

from app.auth.api_keys import ApiKeys, ApiKeyStore, KeyMaker
from app.auth.authenticator import Authenticator

__all__ = ["ApiKeyStore", "ApiKeys", "Authenticator", "KeyMaker"]
