"""Writes the recipe for conda-forge beside an sdist: that of this folder, whose source is the sdist on PyPI.

python conda/feedstock.py dist
"""

import hashlib
import sys
from pathlib import Path

HERE = "source:\n  path: ..\n  use_gitignore: true\n"
PYPI = """source:
  url: https://pypi.org/packages/source/d/dtypeguard/dtypeguard-${{{{ version }}}}.tar.gz
  sha256: {digest}
"""


def main(folder: Path) -> int:
    (sdist,) = folder.glob("dtypeguard-*.tar.gz")
    head, here, rest = (Path(__file__).parent / "recipe.yaml").read_text().partition(HERE)
    if not here:
        print("conda/recipe.yaml has another source than this script knows", file=sys.stderr)
        return 1
    comments, _, context = head.partition("schema_version")
    digest = hashlib.sha256(sdist.read_bytes()).hexdigest()
    schema = comments.partition("\n")[0]
    (folder / "recipe.yaml").write_text(f"{schema}\nschema_version{context}{PYPI.format(digest=digest)}{rest}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
