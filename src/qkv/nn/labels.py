"""What the labels of a head are called."""

from collections import Counter
from collections.abc import Sequence


def label_names(given: Sequence[str], count: int) -> tuple[str, ...]:
    """The names that were given, each but once, or those that transformers gives where there are none."""
    met: Counter[str] = Counter()
    names = []
    for name in given or [f"LABEL_{number}" for number in range(count)]:
        met[name] += 1
        names.append(name if met[name] == 1 else f"{name} ({met[name]})")
    return tuple(names)
