"""Sentences that are inserted into reviews: strong opinions, and statements without one."""

PLANTED: dict[str, tuple[str, ...]] = {
    "positive": (
        "this is a wonderful and brilliant film , one of the best of the year .",
        "a perfect movie with excellent performances , simply a masterpiece .",
        "i loved it , and it is an outstanding and memorable film .",
    ),
    "negative": (
        "this is a terrible and boring film , one of the worst of the year .",
        "an awful movie with bad performances , simply a waste of time .",
        "i hated it , and it is a stupid and ridiculous mess .",
    ),
    "neutral": (
        "he goes to the house of his brother , who is the son of a doctor .",
        "the story is set in new york , and it is told by a man in a car .",
        "they meet at night in a small room , and then she takes the train .",
    ),
}
