"""What `transports` and `admin` share: errors, problem documents, Host and Origin, request ids, health, pages."""
