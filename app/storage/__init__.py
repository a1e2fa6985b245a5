"""The database: tenants, backends, credentials, the audit trail. The only package that uses SQLAlchemy."""

from app.storage.access.api_keys import ApiKeyRepository
from app.storage.backends import BackendRepository
from app.storage.engine import Database
from app.storage.tenants import TenantRepository

__all__ = ["ApiKeyRepository", "BackendRepository", "Database", "TenantRepository"]
