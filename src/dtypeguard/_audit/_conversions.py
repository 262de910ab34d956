"""DG1: conversions."""
