"""The commands that the quick starts print."""

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]


def commands(page: str) -> list[list[str]]:
    text = (ROOT / "docs" / f"quickstart-{page}.md").read_text()
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    return [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]
