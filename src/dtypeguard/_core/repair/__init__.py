"""The consequence of a violation: an error, a warning, or a cast that is counted and verified."""
