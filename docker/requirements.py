"""Prints what pyproject.toml requires, a line each: `requirements.py pyproject.toml EXTRA...`.

So that the image's large layer, the dependencies, does not change with the code.
"""

import sys
import tomllib
from pathlib import Path

path, *extras = sys.argv[1:]
project = tomllib.loads(Path(path).read_text(encoding="utf-8"))["project"]
print(*project["dependencies"], sep="\n")
for extra in extras:
    print(*project["optional-dependencies"][extra], sep="\n")
