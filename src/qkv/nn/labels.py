"""Names of classification labels."""

from collections import Counter
from collections.abc import Sequence


def label_names(names: Sequence[str], count: int) -> tuple[str, ...]:
    """Return the names, made unique, or LABEL_0, LABEL_1, ... as in transformers if there are none."""
    counts: Counter[str] = Counter()
    unique = []
    for name in names or [f"LABEL_{number}" for number in range(count)]:
        counts[name] += 1
        unique.append(name if counts[name] == 1 else f"{name} ({counts[name]})")
    return tuple(unique)
