"""The logger `dtypeguard`."""

import logging

logger = logging.getLogger("dtypeguard")


def log_too(text: str) -> None:
    """Log what is a warning, too, for those who have set logging up: without handlers Python prints both."""
    if logger.hasHandlers():
        logger.warning("%s", text)
