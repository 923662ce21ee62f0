"""Where MLflow keeps runs and models: its database, its artifacts, its experiments.

Only this module knows the address. `prepare_database` comes before the first use: MLflow builds its schema lazily and
without a lock, and several processes that start on an empty folder leave a database that no later start can mend.
"""

from __future__ import annotations

import gc
import logging
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

from tasks.files import atomic_path

if TYPE_CHECKING:
    from filelock import BaseFileLock
    from mlflow.entities import Experiment
    from mlflow.tracking import MlflowClient

_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "1",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_RECORD_ENV_VARS_IN_MODEL_LOGGING": "false",
}


def tracking_uri(root: Path) -> str:
    """Return the tracking address: MLFLOW_TRACKING_URI if set, otherwise SQLite under ``root/mlruns``, absolute."""
    return os.environ.get("MLFLOW_TRACKING_URI") or _own_database(root)


def artifact_location(root: Path) -> str | None:
    """Return where a new experiment keeps its files; None leaves that to a tracking server.

    MLFLOW_DEFAULT_ARTIFACT_ROOT if set, such as ``s3://bucket/folder``, otherwise ``root/mlruns/artifacts``.
    """
    return None if _is_server(tracking_uri(root)) else _artifact_root(root)


def database_file(root: Path) -> Path | None:
    """Return the SQLite file of the tracking database; None when it is on a server."""
    uri = tracking_uri(root)
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


def artifact_folder(root: Path) -> Path | None:
    """Return the folder of the artifacts of new experiments; None when they are in a store or with a server."""
    location = artifact_location(root) or ""
    return Path(url2pathname(urlsplit(location).path)) if location.startswith("file:") else None


def open_database(file: Path) -> sqlite3.Connection:
    """Open an SQLite database that exists, to read it.

    A writer that was killed leaves its half-written transaction and a journal; only a connection that may write takes
    it back, on its first look. SQLite itself opens a write-protected file for reading only.
    """
    return sqlite3.connect(f"{file.resolve().as_uri()}?mode=rw", uri=True, timeout=60)


def tracking_lock(root: Path) -> BaseFileLock:
    """Return the lock, shared by all processes of the project, for steps that look first and then create."""
    from filelock import FileLock

    folder = root / "mlruns"
    folder.mkdir(parents=True, exist_ok=True)
    return FileLock(folder / ".tracking.lock")


def prepare_database(root: Path) -> None:
    """Create the tracking database, or bring it up to the installed MLflow; at once when it already is.

    A SQLite file is built or upgraded as a copy that replaces the original in one step, so a kill leaves the old
    database or the new one. The file remembers in its header for which MLflow it was prepared, so later calls import
    nothing.

    Raises
    ------
    ValueError
        When the file is no MLflow database, or one of a newer MLflow.
    """
    _keep_quiet()
    uri = tracking_uri(root)
    if _is_server(uri):
        return
    if not uri.startswith("sqlite:///"):
        with tracking_lock(root), _without_secrets(uri):
            _build_schema(uri, root)
        return
    file, wanted = Path(uri.removeprefix("sqlite:///")), _installed_version()
    if _prepared_version(file) == wanted:
        return
    with tracking_lock(root):
        if _prepared_version(file) == wanted:
            return
        with atomic_path(file) as copy:
            if file.exists():
                with closing(sqlite3.connect(file)) as old, closing(sqlite3.connect(copy)) as new:
                    old.backup(new)
            else:
                # Of a database that was moved away: SQLite would write its old pages into the new one.
                Path(f"{file}-journal").unlink(missing_ok=True)
            try:
                _build_schema(f"sqlite:///{copy}", root)
            except Exception as error:
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                raise ValueError(
                    f"{file}: cannot be used by the installed MLflow {metadata.version('mlflow')} ({reason});"
                    " move the file away and run `python -m tasks.publish` to rebuild it from the run folders"
                ) from error
            with closing(sqlite3.connect(copy)) as new:
                new.execute(f"PRAGMA user_version = {wanted}")
                new.commit()


def open_client(root: Path) -> MlflowClient:
    """Return a client of the prepared tracking store and registry."""
    prepare_database(root)
    uri = tracking_uri(root)
    with _without_collections():
        from mlflow.tracking import MlflowClient

        _silence_loggers()
        return MlflowClient(tracking_uri=uri, registry_uri=os.environ.get("MLFLOW_REGISTRY_URI") or uri)


@contextmanager
def readable_errors() -> Iterator[None]:
    """Turn what MLflow raises, with its pages of context, into a `ValueError` of one line."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith(("mlflow.", "sqlalchemy.")):
            raise
        raise ValueError(f"MLflow: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """Return what the database's driver said, if it is about a database, else the first line."""
    cause: BaseException | None = error
    while cause is not None:
        if said := getattr(cause, "orig", None):
            return " ".join(str(said).split())
        cause = cause.__cause__ or cause.__context__
    return (str(error).splitlines() or [type(error).__name__])[0]


def ensure_experiment(client: MlflowClient, name: str, root: Path) -> str:
    """Return the id of the experiment `name`; it is created, or restored from deletion, when needed.

    MLflow stores artifact folders as absolute paths. After the project was moved its experiment points to where the
    project used to be; that experiment is renamed and a new one takes its place, which `publish` fills.
    """
    location = artifact_location(root)
    with tracking_lock(root):
        experiment = client.get_experiment_by_name(name)
        if experiment is not None and experiment.lifecycle_stage == "deleted":
            client.restore_experiment(experiment.experiment_id)
        if experiment is not None and _moved(experiment, root):
            client.rename_experiment(experiment.experiment_id, f"{name} ({experiment.artifact_location})")
            experiment = client.get_experiment_by_name(f"{name} ({location})")
            if experiment is not None:
                client.rename_experiment(experiment.experiment_id, name)
        if experiment is not None:
            return str(experiment.experiment_id)
        return str(client.create_experiment(name, artifact_location=location))


def _own_database(root: Path) -> str:
    return f"sqlite:///{root.resolve() / 'mlruns' / 'mlflow.db'}"


def _artifact_root(root: Path) -> str:
    configured = os.environ.get("MLFLOW_DEFAULT_ARTIFACT_ROOT", "").rstrip("/")
    return configured or (root.resolve() / "mlruns" / "artifacts").as_uri()


@contextmanager
def _without_collections() -> Iterator[None]:
    """Keep the garbage collector from looking through 2000 modules again and again while they load: a fifth of it."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def _without_secrets(uri: str) -> Iterator[None]:
    """Turn what a database server, its driver or SQLAlchemy say into one line that does not show the password."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        address = make_url(uri).render_as_string(hide_password=True)
    except ArgumentError:
        raise ValueError("MLFLOW_TRACKING_URI: no database address; expected postgresql://user@host/name") from None
    try:
        yield
    except Exception as error:
        reason = " ".join(str(getattr(error, "orig", None) or error).split())
        raise ValueError(f"MLFLOW_TRACKING_URI: {address} cannot be used: {reason}") from None


def _moved(experiment: Experiment, root: Path) -> bool:
    """Say whether the experiment belongs to the same database under another folder; a shared one may lie anywhere."""
    old = str(experiment.artifact_location)
    is_own = tracking_uri(root) == _own_database(root)
    return is_own and old != artifact_location(root) and old.endswith("/mlruns/artifacts")


def _is_server(uri: str) -> bool:
    return uri.startswith(("http://", "https://", "databricks", "uc:"))


def _keep_quiet() -> None:
    """Set before MLflow is imported; whoever wants something else has set it in the environment."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)


def _silence_loggers() -> None:
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # It prints a traceback of what it raises anyway.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)


def _installed_version() -> int:
    numbers = [int(part) for part in re.findall(r"\d+", metadata.version("mlflow"))[:3]]
    major, minor, patch = (*numbers, 0, 0)[:3]
    return major * 1_000_000 + minor * 1_000 + patch


def _prepared_version(file: Path) -> int | None:
    if not file.is_file():
        return None
    try:
        with closing(open_database(file)) as connection:
            return int(connection.execute("PRAGMA user_version").fetchone()[0])
    except sqlite3.OperationalError as error:
        raise ValueError(f"{file}: cannot be opened now ({error}); it need not be damaged, so leave it there") from None
    except sqlite3.DatabaseError as error:
        raise ValueError(f"{file}: not readable as an SQLite database ({error}); move it away") from None


def _build_schema(uri: str, root: Path) -> None:
    import sqlalchemy
    from mlflow.store.db.utils import _upgrade_db
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    _silence_loggers()
    engine = sqlalchemy.create_engine(uri)
    try:
        if sqlalchemy.inspect(engine).has_table("experiments"):
            _upgrade_db(engine)
    finally:
        engine.dispose()
    # The store's constructor builds a missing schema, checks it and adds MLflow's default experiment.
    store = SqlAlchemyStore(uri, _artifact_root(root))
    store.engine.dispose()
