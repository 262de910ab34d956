"""What was found, as text, table, page and JSON."""
