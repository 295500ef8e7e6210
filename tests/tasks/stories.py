"""Small stories, and a memory network of them."""

import torch

from qkv.datasets.dataset import StoryDataset
from qkv.datasets.examples.stories import StoryQuestion
from qkv.models.memory.memory_network import MemoryNetwork, MemoryNetworkConfig
from qkv.tasks.story_answering import StoryAnsweringTask
from qkv.tokenizers import WordTokenizer

NAMES, LOCATIONS = ("Mary", "John", "Ada"), ("garden", "office", "kitchen", "hall")


def questions() -> list[StoryQuestion]:
    """Where is somebody after two moves of each of two persons? Task 1 asks for the first person, task 2 the other."""
    stories = []
    for number in range(48):
        first, second = NAMES[number % 3], NAMES[(number + 1) % 3]
        before, after, other = (LOCATIONS[(number // step) % 4] for step in (1, 3, 5))
        sentences = tuple(
            f"{who} went to the {where}." for who, where in ((first, before), (first, after), (second, other))
        )
        asked, answer, task = ((first, after, 1), (second, other, 2))[number % 2]
        stories.append(StoryQuestion(sentences, f"Where is {asked}?", answer, task))
    return stories


def story_data() -> tuple[StoryDataset, WordTokenizer]:
    data = StoryDataset({"train": questions(), "valid": questions()[:9], "test": questions()})
    return data, WordTokenizer.train(data.training_texts(), lowercase=True)


def memory_network(**config: object) -> MemoryNetwork:
    data, tokenizer = story_data()
    torch.manual_seed(0)
    sizes = StoryAnsweringTask.sizes(data, tokenizer)
    model = MemoryNetwork(MemoryNetworkConfig(**{**sizes, "dim": 16, "max_memories": 8, **config}))
    model.tokenizer = tokenizer
    return model.eval()
