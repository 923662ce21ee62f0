#!/bin/sh
# Make the environment and the project ready: `make setup`, or `sh setup.sh` without make. Does nothing when nothing
# changed. PYTHON=... or an active virtual environment is used instead of .venv; INSTALL=no installs nothing.
set -eu
cd "$(dirname "$0")"

fail() {
    echo "error: $*" >&2
    exit 1
}

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

if [ -z "${PYTHON:-}${VIRTUAL_ENV:-}" ] && [ ! -x .venv/bin/python ]; then
    found=
    for candidate in python3 python3.13 python3.12 python3.11 python; do
        if is_new_enough "$candidate"; then
            found=$candidate
            break
        fi
    done
    [ -n "$found" ] || fail "Python 3.11 or newer is needed and none was found; install it, or give PYTHON=/path/to/python"
    echo "creating .venv with $("$found" --version)"
    "$found" -m venv .venv >/dev/null || {
        rm -rf .venv
        fail "'$found -m venv' failed; on Debian or Ubuntu install python3-venv"
    }
fi

. ./env.sh
command -v python >/dev/null || fail "no 'python' beside the interpreter in use (${PYTHON:-${VIRTUAL_ENV:-.venv}}); use a virtual environment"
is_new_enough python || fail "Python 3.11 or newer is needed; $(command -v python) is $(python --version 2>&1)"

# --- packages --------------------------------------------------------------------------------------------------------

wanted="$PWD $(cat pyproject.toml constraints.txt | cksum)"
stamp=$(dirname "$(dirname "$(command -v python)")")/.fedcore-setup
changed=no
if [ "${INSTALL:-yes}" != no ] && [ "$(cat "$stamp" 2>/dev/null || true)" != "$wanted" ]; then
    changed=yes
    rm -f "$stamp" 2>/dev/null || true
    python -m pip --version >/dev/null 2>&1 || python -m ensurepip >/dev/null 2>&1 ||
        fail "the environment of $(command -v python) has no pip; add it, or use another environment"
    mkdir -p .cache
    # A torch that works with its torchvision is left alone (it may be built for this machine's accelerator).
    if python -c 'import torch, torchvision' >/dev/null 2>&1; then
        grep -viE '^(torch|torchvision|triton|nvidia-.*|cuda-.*)==' constraints.txt >.cache/constraints.txt
    else
        cp constraints.txt .cache/constraints.txt
    fi
    echo "installing the packages of pyproject.toml at the versions of constraints.txt"
    rm -f .cache/installed
    {
        python -m pip install --disable-pip-version-check --no-input -c .cache/constraints.txt -e '.[pipeline,dev]' &&
            touch .cache/installed
    } | grep -v '^Requirement already satisfied' || true
    [ -e .cache/installed ] || fail "the packages did not install; read pip's messages above"
    python -c 'import dvc, fedcore, mlflow, prefect, torch, torchvision' || fail "the installed packages do not load"
    { echo "$wanted" >"$stamp"; } 2>/dev/null || true
fi

# --- project ---------------------------------------------------------------------------------------------------------

# DVC insists on git unless told; an unpacked archive has none. The setting is local, so a later clone is not affected.
if [ ! -e .git ]; then
    grep -qs 'no_scm *= *true' .dvc/config.local || dvc config --local core.no_scm true
elif grep -qs 'no_scm' .dvc/config.local; then
    dvc config --local --unset core.no_scm
fi

# A stage depends on this folder; an archive made without data/ lacks it, and DVC warns when it is empty.
mkdir -p data/accepted
[ -e data/accepted/.gitkeep ] || : >data/accepted/.gitkeep

# MLflow's tables are created here, once: several first users at the same time would leave the database unusable.
if [ "$changed" = yes ] || [ ! -s mlruns/mlflow.db ]; then
    python -m tasks.tracking --prepare
fi
