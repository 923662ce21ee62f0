#!/bin/sh
# Run one of the comparisons here in a copy of the project, so that params.yaml, runs/ and reports/ stay as they are.
# Usage: sh experiments/run.sh NAME. The copy is kept in .experiments/NAME; running again goes on where it stopped.
set -eu
cd "$(dirname "$0")/.."
name=${1:-}
if [ ! -f "experiments/$name.yaml" ]; then
    echo "error: no experiments/$name.yaml; valid: $(ls experiments | sed -n 's/\.yaml$//p' | tr '\n' ' ')" >&2
    exit 1
fi
copy=.experiments/$name
mkdir -p "$copy/data"
tar --exclude=./.venv --exclude=./.git --exclude=./.cache --exclude=./.prefect --exclude=./.checkpoints \
    --exclude=./.experiments --exclude=./.dvc/cache --exclude=./.dvc/tmp --exclude=./data --exclude=./runs \
    --exclude=./reports --exclude='./mlruns/*' --exclude=./dvc.lock -cf - . | tar -xf - -C "$copy"
cp "experiments/$name.yaml" "$copy/params.yaml"
# One place for downloaded files, whatever the comparison.
mkdir -p data/raw
[ -e "$copy/data/raw" ] || ln -s "$(pwd)/data/raw" "$copy/data/raw"
. ./env.sh
python=$(command -v python)
cd "$copy"
PYTHON=$python INSTALL=no exec make repro
