"""What a model holds, as a contract."""
