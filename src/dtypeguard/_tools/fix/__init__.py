"""Edits that mend what an audit found, each proven by running the program with it."""
