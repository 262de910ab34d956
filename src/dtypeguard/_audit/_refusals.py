"""Exceptions of torch about dtypes and devices, and the rules that explain them."""
