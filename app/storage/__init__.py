"""Tenants, backends and keys in SQL. The only package that knows SQLAlchemy."""

from app.storage.api_keys import ApiKey, ApiKeyRepository
from app.storage.backends import BackendRepository
from app.storage.engine import Database
from app.storage.tenants import TenantRepository

__all__ = ["ApiKey", "ApiKeyRepository", "BackendRepository", "Database", "TenantRepository"]
