"""Autocast and GradScaler."""
