"""What users call by one name."""
