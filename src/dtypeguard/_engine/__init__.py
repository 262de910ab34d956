"""One way to see a program run."""
