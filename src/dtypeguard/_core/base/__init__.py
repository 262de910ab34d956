"""What everything else stands on: the table of dtypes, the errors and their renderer, modes and options."""
