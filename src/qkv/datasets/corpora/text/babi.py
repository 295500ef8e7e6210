"""bAbI: twenty tasks of questions about generated stories (Weston et al. 2015), 10,000 training questions each.

The training file of task 3 has 1,000 questions. One training story in ten is held out for validation.
"""

from typing import Annotated

from pydantic import AfterValidator, Field, Strict

from qkv.config import require
from qkv.datasets.columns import Column
from qkv.datasets.dataset import StoryDataset, TextDatasetConfig
from qkv.datasets.dataset_cache import data_files
from qkv.datasets.examples.stories import StoryQuestion, parse_stories
from qkv.datasets.formats.archive import unpack
from qkv.datasets.formats.text_files import decode_lines, digest, hold_out
from qkv.registry import register

TASKS = 20
VALID_SHARE = 0.1  # of the training stories

FILES = {  # size and SHA-256 of the training and the test file of each task
    "qa1_single-supporting-fact_train": (79243, "c842d10d979c468f988a54c3e3fb8e4f99842f920f9c0051efee5c6b686add1d"),
    "qa1_single-supporting-fact_test": (8728, "b8075f168b9cd91cba2734a621d847f045157e0160cf9513bd93e5a7082073c2"),
    "qa2_two-supporting-facts_train": (191624, "3eac6839cdac9d2947e3b5d0c5b3a92468fb03b2d9c018be326111a0b202101f"),
    "qa2_two-supporting-facts_test": (20064, "c74a28c3f41831b540bfaeaf239959b853dcc5ca4cd3e46f86f2026013566d68"),
    "qa3_three-supporting-facts_train": (62691, "ad8d472ab77fe5bec864a08caa543b6e33bb3633e89d87f18f6830a674996481"),
    "qa3_three-supporting-facts_test": (62223, "6421735def6796a48a81ef9203459a37aa6d52e9403bf90f64887154246fdfb7"),
    "qa4_two-arg-relations_train": (70613, "03e960984e899b098b70a8110768a51d86227669a2b7876160735cbb8d475162"),
    "qa4_two-arg-relations_test": (7675, "fcbea839c6775b4b33a9669a78e43c1d43f224be257f0982510ad409046c8c80"),
    "qa5_three-arg-relations_train": (242154, "2f5304e8b3a3f9e7d89cc44809e2c1ddc2465ab338a39b7538209e8f94e53925"),
    "qa5_three-arg-relations_test": (24534, "86b6d380236783ca5f8cfafcec2ee43991873ab53ad5b43b3681742a00ca0527"),
    "qa6_yes-no-questions_train": (96372, "b56960c900a2c0504eeae4781b17cddb9853b88c4e38872003815e14f188459e"),
    "qa6_yes-no-questions_test": (10399, "c8c9d84130145ca14a0d5b4439619f072beea8908e436e313199ed2990ed8347"),
    "qa7_counting_train": (130360, "aaff35593253c8f682405564971c8ca57ef44d1aa52f0d30a104df7c6af11788"),
    "qa7_counting_test": (13288, "96cbed0052a4ca3f7e75b658b1d53b883a93593d36a39a2b0c2262d531fef4fd"),
    "qa8_lists-sets_train": (126101, "7e3dd1364367394998c505241d4c52ceec2f6ccdbebf8b9ace37534eb0a267fd"),
    "qa8_lists-sets_test": (13564, "783237ae47a726cc3ccf93211b47d4880a301be08af377488c14414ca590c395"),
    "qa9_simple-negation_train": (87289, "f6f12e129f084cf179f061e29c0a2ad14ab37218fa84568ac36a493ada8d1ff7"),
    "qa9_simple-negation_test": (9532, "eca0fe0026fdd50f7391a27ccce3ae90d0cb57ae4f95e86bcd69304e96e0aaff"),
    "qa10_indefinite-knowledge_train": (93213, "1b9d97d9f431604eca3e67c5c1c93029b6691c993ef7b8d1254e0875d56d1ee9"),
    "qa10_indefinite-knowledge_test": (10138, "05e91908ba8b36c2ee7e2db950ffb9fe59a2420d8e155aac6fbec96689a25172"),
    "qa11_basic-coreference_train": (81424, "27e95b413dd93dee4bbb6cdfdc4e71a00b4e1177a5f2ad8a9575b719009f9491"),
    "qa11_basic-coreference_test": (8978, "c9df44634a9e791a399e20c15af2b7efaa8c6578d384e5d06bfd6dd39fef630b"),
    "qa12_conjunction_train": (88302, "933f0d73593e5f3de90da21e6801d1f738d2f79edb29aba845f9dcdbd7601204"),
    "qa12_conjunction_test": (9587, "e46af216abc75759cc5a36d8f3913350314450e278ed038acec973d9293c7d94"),
    "qa13_compound-coreference_train": (82935, "7d173bc8e6829022010212c6670ca135c27b6eee7bb619f9fdc4cf9262a963a4"),
    "qa13_compound-coreference_test": (9129, "93926ea63807de517287c062f52ffbcbb822d4bb60a0d20f6ff8ecfbd2dc042a"),
    "qa14_time-reasoning_train": (147051, "1a076af0407013afed27ff15eba0f3143adaf4796b7d00e03e30b0e41f15838d"),
    "qa14_time-reasoning_test": (15473, "0478f7b79a6ae6899e7044fee38da8405f22e96e3a8e79a05624b746f5a646b1"),
    "qa15_basic-deduction_train": (69684, "79018d953bd15604046a66cffeb43a1c26b3d85f9a8607abeaeb012f99ef4041"),
    "qa15_basic-deduction_test": (7640, "a6eed731165e088197ecb04293af21f12a15e5aecf3f82a01d663ba34501e8dc"),
    "qa16_basic-induction_train": (208484, "6f0ac25c272069868b0815a5c982ba0918ead0a3c116f88eb4db0e10f0a74274"),
    "qa16_basic-induction_test": (21658, "b445009141b35e09afea5754a1e6787954a994facc6c89ec018215ccf1fbadea"),
    "qa17_positional-reasoning_train": (41920, "3c803582c56af697b99a7f1cc292e92a146f0593b7b9dde71cdcc0a898cdc501"),
    "qa17_positional-reasoning_test": (4797, "1cab518adde63b197c187cf9322b3add2a72140799c1883afbc6c6660691a183"),
    "qa18_size-reasoning_train": (74170, "99e059d2693cfc34905e00ffb9427d5900fd015eea98aeecc970d3511c5dd7d0"),
    "qa18_size-reasoning_test": (7779, "e024784e5f219c0cd2ab68de05f3919f770fc4968f6424743b69551838981d13"),
    "qa19_path-finding_train": (177469, "26402551f542086198c8ed4b81d8582be3900850bce84bfc2b5669f886370ef2"),
    "qa19_path-finding_test": (18389, "af659cfc244fa6c6f70086f15fefdaf36b32e1ae620230a80e06fd04c3684368"),
    "qa20_agents-motivations_train": (51411, "b8915ead76f9883df256509c9873eb9fc445b47818df39f47b0de72b61dac110"),
    "qa20_agents-motivations_test": (6137, "eb852cc791b2bfd586bf7f9faafe6756ff3d79f9548c1e98d8837d4e41079306"),
}


def _distinct(tasks: tuple[int, ...]) -> tuple[int, ...]:
    require(0 < len(tasks) == len(set(tasks)), f"data.tasks must be distinct numbers of tasks, not {list(tasks)}")
    return tasks


TaskNumber = Annotated[int, Field(ge=1, le=TASKS)]
TaskNumbers = Annotated[tuple[TaskNumber, ...], Strict(False), AfterValidator(_distinct)]


@register("dataset", "babi")
class BAbI(TextDatasetConfig):
    """Questions about generated stories, in twenty tasks."""

    summary = "questions about generated stories in 20 tasks: 191,000 for training"
    license = "CC BY 3.0"
    origin = "it is the folder en-10k of bAbI tasks v1.2 (https://research.facebook.com/downloads/babi), gzipped."
    files = data_files("babi", {f"{name}.txt.gz": entry for name, entry in FILES.items()})
    dataset_class = StoryDataset
    columns = (Column("error", "mean error of the tasks, %", 100, higher_is_better=False),)

    tasks: TaskNumbers = tuple(range(1, TASKS + 1))  # numbers of the tasks; by default all, trained jointly

    def read(self) -> StoryDataset:
        """Read the tasks; training and validation questions are ordered by hash, so that any prefix has all tasks."""
        splits: dict[str, list[StoryQuestion]] = {"train": [], "valid": [], "test": []}
        for task in self.tasks:
            files = self.files[2 * task - 2 : 2 * task]
            stories = [
                parse_stories(decode_lines(unpack(path), str(path)), str(path), task) for path in self.fetch(files)
            ]
            kept, held_out = hold_out(stories[0], VALID_SHARE, lambda questions: questions[-1].text)
            for split, part in zip(splits, (kept, held_out, stories[1]), strict=True):
                splits[split] += [question for questions in part for question in questions]
        for split in ("train", "valid"):
            splits[split].sort(key=lambda question: digest(question.text))
        return StoryDataset(splits)
