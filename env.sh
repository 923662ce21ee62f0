# What every command of this project runs with. Source it from the project's folder: `. ./env.sh`
# (make does so by itself). Nothing here changes results; it keeps state inside the project and telemetry off.

_root=$(cd "$(dirname "${BASH_SOURCE:-./env.sh}")" && pwd)
if [ ! -f "$_root/dvc.yaml" ]; then
    echo "error: source env.sh from the project's folder" >&2
    return 1 2>/dev/null || exit 1
fi

# The tracking database's address would end at the question mark.
case "$_root" in
    *\?*)
        echo "error: $_root: the project's path has a '?', with which no database can be addressed; move or rename it" >&2
        return 1 2>/dev/null || exit 1
        ;;
esac

# The interpreter: PYTHON=... if given, else the active virtual environment, else .venv.
if [ -n "${PYTHON:-}" ]; then
    _bin=$("$PYTHON" -c 'import os, sys; print(os.path.dirname(sys.executable))') || return 1 2>/dev/null || exit 1
elif [ -n "${VIRTUAL_ENV:-}" ]; then
    _bin=$VIRTUAL_ENV/bin
else
    _bin=$_root/.venv/bin
fi
case "$PATH" in
    "$_bin":*) ;;
    *) PATH=$_bin:$PATH ;;
esac

# A tracking server of your own is kept; a path this file once set for another checkout is not.
_database=sqlite:///$_root/mlruns/mlflow.db
case "${MLFLOW_TRACKING_URI:-}" in
    "" | "sqlite:///${FEDCORE_ROOT:-}/mlruns/mlflow.db") MLFLOW_TRACKING_URI=$_database ;;
esac

FEDCORE_ROOT=$_root
PREFECT_HOME=$_root/.prefect
DVC_SITE_CACHE_DIR=$_root/.cache/dvc
export PATH FEDCORE_ROOT MLFLOW_TRACKING_URI PREFECT_HOME DVC_SITE_CACHE_DIR

export DO_NOT_TRACK=1
export DVC_NO_ANALYTICS=1
export MLFLOW_DISABLE_TELEMETRY=true
export PREFECT_SERVER_ANALYTICS_ENABLED=false
export PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT=false
export RAY_USAGE_STATS_ENABLED=0

# A slow machine needs more than the default 20 s to start a temporary server.
export PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS=90
# MLflow warns on every import where git is not installed; the lineage is recorded by the pipeline itself.
export GIT_PYTHON_REFRESH=quiet

unset _root _bin _database
