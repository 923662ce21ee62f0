#!/usr/bin/env bash
# Every workload on a GPU: benchmarks/gpu.sh [results.json]. Needs torch, numpy, pydantic and safetensors; random bytes
# stand in for the data sets, so no files travel. PYTHON names the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
out=${1:-benchmarks/results/gpu.json}

"$python" -c 'import torch, sys; sys.exit(0 if torch.cuda.is_available() else "error: torch sees no GPU here")'
export CUBLAS_WORKSPACE_CONFIG=${CUBLAS_WORKSPACE_CONFIG:-:4096:8}
# The small ones first: a time limit then still leaves figures. The serial executor shows what stacking brings.
"$python" -m benchmarks.compare --device cuda --data random --rounds 5 --workloads w3 w2 w1 \
    --executor stacked serial --json "${out%.json}-w.json"
"$python" -m benchmarks.compare --device cuda --data random --rounds 5 --workloads g1 g2 g3 \
    --executor stacked --json "${out%.json}-g.json"
# The same with steps recorded as CUDA graphs.
"$python" -m benchmarks.compare --device cuda --data random --rounds 5 --workloads w3 w2 w1 g1 g2 g3 \
    --executor stacked --set compile=always --json "${out%.json}-graphs.json"
