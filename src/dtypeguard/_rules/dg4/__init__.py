"""Optimizers and averages."""
