"""Autocast."""
