"""Whether it holds, and why not: the reference that explains every violation."""
