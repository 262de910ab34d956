"""What is wrong with what was seen."""
