"""The payload of a page of the explorer."""

import json
import re
from pathlib import Path
from typing import Any


def stored(path: Path) -> Any:
    """Return the payload of a page."""
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(encoding="utf-8"))
    return json.loads(data)
