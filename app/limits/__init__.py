"""What a tenant may use at once, counted where it is used."""
