#!/usr/bin/env bash
# Train on several machines with Slurm:
#     sbatch --nodes 2 slurm.sh multi30k-transformer --output /shared/runs/base
#SBATCH --job-name=qkv
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
set -euo pipefail
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun \
    --nnodes "$SLURM_NNODES" --nproc-per-node "${SLURM_GPUS_ON_NODE:-1}" --max-restarts "${RESTARTS:-3}" \
    --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "$head:${PORT:-29500}" \
    -m qkv train "$@" --resume auto
