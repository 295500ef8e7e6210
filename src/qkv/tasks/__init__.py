"""Tasks: examples, batches, loss and metrics, one file each, for training and evaluation alike."""

from qkv.tasks import (
    algorithmic as algorithmic,
)
from qkv.tasks import (
    bandit as bandit,
)
from qkv.tasks import (
    bilm as bilm,
)
from qkv.tasks import (
    captioning as captioning,
)
from qkv.tasks import (
    few_shot as few_shot,
)
from qkv.tasks import (
    image_classification as image_classification,
)
from qkv.tasks import (
    language_modeling as language_modeling,
)
from qkv.tasks import (
    masked_lm as masked_lm,
)
from qkv.tasks import (
    packed_lm as packed_lm,
)
from qkv.tasks import (
    question_answering as question_answering,
)
from qkv.tasks import (
    tagging as tagging,
)
from qkv.tasks import (
    text_classification as text_classification,
)
from qkv.tasks import (
    translation as translation,
)
