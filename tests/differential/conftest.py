from tests.integration.conftest import gateway

__all__ = ["gateway"]
