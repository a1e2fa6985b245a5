"""The database: tenants, backends, credentials, the audit trail. The only package that uses SQLAlchemy."""
