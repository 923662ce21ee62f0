#!/usr/bin/env bash
# Everything there is to measure on a GPU, a part at a time: benchmarks/gpu.sh [results.json] [part ...].
#   rounds       W1 to W3, stacked and one client at a time
#   graphs       the same with steps recorded as CUDA graphs
#   images       G1 to G3, without and with CUDA graphs
#   convolutions W1 and G1 to G3 with convolutions as products of patches and kernels
#   precision    W1 and G2 in TF32 and bfloat16
# Needs torch, numpy, pydantic and safetensors. Random bytes stand in for the data sets, unless DATA names a folder that
# holds MNIST/raw: then W1 to W3 train on digits, and what precision does to accuracy can be read. PYTHON names the
# interpreter. Whether all of it computes what it should say the tests: python -m pytest -q -m gpu tests/gpu.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
out=${1:-benchmarks/results/gpu.json}
parts=${*:2}

"$python" -c 'import torch, sys; sys.exit(0 if torch.cuda.is_available() else "error: torch sees no GPU here")'
export CUBLAS_WORKSPACE_CONFIG=${CUBLAS_WORKSPACE_CONFIG:-:4096:8}

digits=(--data random)
[ -z "${DATA:-}" ] || digits=(--root "$DATA")

measure() { # name of the file, then options
    "$python" -m benchmarks.compare --device cuda --rounds 5 --json "${out%.json}-$1.json" "${@:2}"
}

# The small workloads first: a time limit then still leaves figures.
for part in ${parts:-rounds graphs images convolutions precision}; do
    case $part in
    rounds) measure rounds "${digits[@]}" --workloads w3 w2 w1 --executor stacked serial ;;
    graphs) measure graphs "${digits[@]}" --workloads w3 w2 w1 --executor stacked --set compile=always ;;
    images)
        measure images --data random --workloads g1 g2 g3 --executor stacked
        measure images-graphs --data random --workloads g1 g2 g3 --executor stacked --set compile=always
        ;;
    convolutions)
        measure products "${digits[@]}" --workloads w1 --executor stacked --set convolutions=products
        measure images-products --data random --workloads g1 g2 g3 --executor stacked --set convolutions=products
        ;;
    precision)
        for precision in tf32 bfloat16; do
            measure "$precision" "${digits[@]}" --workloads w1 --executor stacked --set "precision=$precision"
            measure "images-$precision" --data random --workloads g2 --executor stacked --set "precision=$precision"
        done
        ;;
    *)
        echo "error: '$part' is no part; valid: rounds, graphs, images, convolutions, precision" >&2
        exit 1
        ;;
    esac
done
