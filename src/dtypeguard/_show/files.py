"""Results as files."""

import json
import os
from pathlib import Path
from typing import Any


def as_json(data: dict[str, Any], path: str | os.PathLike[str] | None) -> str:
    """Plain data as JSON, which is written to a file too if a path is given."""
    text = json.dumps(data, indent=1, allow_nan=False)
    if path is not None:
        Path(path).write_text(text + "\n", encoding="utf-8")
    return text
