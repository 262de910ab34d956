"""What is done about a violation: an error, a warning, or a cast that is counted and looked at."""
