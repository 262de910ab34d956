"""Contracts: what is asked, whether it holds, what is done about it, made fast."""
