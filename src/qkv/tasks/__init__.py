"""Tasks: examples, batches, loss and metrics, one file each, for training and evaluation alike."""

from qkv.tasks import (  # noqa: F401  (importing a task registers it)
    algorithmic,
    bandit,
    bilm,
    captioning,
    dialogue,
    few_shot,
    image_classification,
    language_modeling,
    masked_lm,
    packed_lm,
    parsing,
    question_answering,
    story_answering,
    tagging,
    text_classification,
    transcription,
    translation,
)
