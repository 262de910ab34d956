"""DG2: autocast."""
