#!/usr/bin/env bash
# Train on several machines. Run the same command on each of them, with HEAD set to the name of the first:
#     HEAD=node1 NODES=2 GPUS=8 bash two-nodes.sh multi30k-transformer --output /shared/runs/base
set -euo pipefail
: "${HEAD:?set HEAD to the name of the first machine}"
exec torchrun \
    --nnodes "${NODES:-2}" --nproc-per-node "${GPUS:-8}" --max-restarts "${RESTARTS:-3}" \
    --rdzv-id "${RUN_ID:-qkv}" --rdzv-backend c10d --rdzv-endpoint "$HEAD:${PORT:-29500}" \
    -m qkv train "$@" --resume auto
