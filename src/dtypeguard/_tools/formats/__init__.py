"""Formats of 8 and 4 bits: what they round, and the matrix products that are computed with rounded operands."""
