"""Callbacks for training frameworks; each module imports the framework it is named after, and nothing else does."""
