"""The `train` table of a recipe: settings of the training loop and of batches, for all tasks."""

from typing import Annotated, Literal

from pydantic import Field

from qkv.config import Budget, Config, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Rate
from qkv.datasets.batching import BatchSize


class TrainConfig(Config):
    """Training settings."""

    epochs: PositiveInt = 10  # passes over the training data
    batch_size: Budget = 4096  # size of a batch, in the unit of batch_by
    batch_by: Literal["tokens", "examples"] = "tokens"  # tokens, including padding, of the longer side; or examples
    lr: PositiveFloat = 1e-3  # peak learning rate
    warmup: NonNegativeInt = 100  # steps of linear learning rate warmup; at most half of the run
    decay: Literal["constant", "linear", "cosine", "inverse_sqrt"] = "cosine"  # learning rate schedule after warmup
    optimizer: Literal["adamw", "muon"] = "adamw"  # muon: Muon for the matrices of the blocks, AdamW for the rest
    beta1: Rate = 0.9  # decay of AdamW's average of gradients
    beta2: Rate = 0.98  # decay of AdamW's average of squared gradients
    weight_decay: NonNegativeFloat = 0.01  # of the optimizer
    clip: Annotated[float, Field(gt=0)] = 1.0  # maximum gradient norm
    on_nonfinite: Literal["stop", "skip"] = "stop"  # if a loss or gradient is not finite: stop, or skip the update
    skip_spikes: NonNegativeFloat = 0.0  # skip updates whose gradient norm exceeds this multiple of its average; 0: no
    ema: Rate = 0.0  # decay of the weight average that is validated and saved; 0: no average
    precision: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bfloat16 where it is faster
    accumulate: Annotated[int, Field(ge=1, le=1024)] = 1  # passes per batch and process, to save memory
    parallel: Literal["ddp", "fsdp"] = "ddp"  # with torchrun: copies of the model, or weights and optimizer sharded
    graphs: bool = True  # on a GPU: capture training steps in CUDA graphs, one per batch shape
    compile: Literal["auto", "always", "never"] = "auto"  # torch.compile the blocks; auto: in long runs on a GPU
    recompute: bool = False  # recompute the activations of the blocks in the backward pass, to save memory
    validate_every: PositiveInt = 500  # steps between validations
    valid_size: Budget = 500  # maximum number of validation examples
    save_every: PositiveInt = 500  # steps between checkpoints
    keep: PositiveInt = 2  # number of checkpoints to keep, in addition to the best
    best_by: str = "loss"  # metric that selects the best checkpoint; one of the task's metrics
    patience: NonNegativeInt = 0  # stop after this many validations without improvement; 0: never

    @property
    def batching(self) -> BatchSize:
        """The size of a batch with its unit."""
        return BatchSize(self.batch_size, self.batch_by)
