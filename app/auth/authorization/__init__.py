"""The authorization server of a tenant (OAuth 2.1): clients, what people allow them, and access tokens."""
