"""Say what `make serve` has up: `make status`. Exit code 0 when all of it is, 1 when something is not."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from httpx import HTTPError
from prefect.exceptions import PrefectException

from flows import gpus
from flows.experiment import gpu_leases
from flows.instance import owner
from flows.recovery import describe, leftovers, listener
from flows.serve import POOL
from flows.server import address, api_url, is_healthy

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

SHOWN_RUNS = 5
NOTED = (".prefect/prefect.db", "mlruns/mlflow.db", ".prefect/logs/server.log", ".prefect/logs/worker.log")


def status(root: Path) -> tuple[list[str], bool]:
    """Return what is up as lines for a person, and whether everything is."""
    url = api_url()
    pid = owner(root)
    healthy = is_healthy(url)
    if not healthy:
        return [*_not_running(root, pid, address(url)[1]), *_files(root)], False
    serving = f"serving  {f'process {pid}' if pid else 'no, yet a server answers: `make stop`, then `make serve`'}"
    server = f"server   {url.removesuffix('/api')}"
    try:
        workers, recent, upcoming = _records()
    except (HTTPError, PrefectException) as error:
        why = f"it may be starting, or another Prefect server that knows no pool '{POOL}' ({type(error).__name__})"
        return [serving, f"{server} answers, but not with what `make serve` sets up; {why}", *_files(root)], False
    lines = [
        serving,
        server,
        f"worker   {', '.join(workers) or 'none; it is starting, or see .prefect/logs/worker.log'}",
    ]
    lines += [f"last     {_past(run)}" for run in recent] or ["last     no run yet"]
    lines += [f"next     {_coming(run)}" for run in upcoming] or ["next     nothing is scheduled"]
    lines += _gpus()
    return [*lines, *_files(root)], bool(pid and workers)


def _not_running(root: Path, pid: int | None, port: int) -> list[str]:
    if pid:
        return [f"serving  process {pid}", "server   does not answer; it is starting, or see .prefect/logs/server.log"]
    lines = ["serving  no; `make serve` starts it"]
    left = [describe(process) for process in leftovers(root)]
    if left:
        lines.append(f"left     {', '.join(left)}; `make stop` ends it")
    elif who := listener(port):
        lines.append(f"port     {port} is taken by {who}")
    return lines


def _records() -> tuple[list[str], list[FlowRun], list[FlowRun]]:
    """Return the names of workers that are online, the last runs and the next one of every deployment."""
    from prefect import get_client
    from prefect.client.schemas.filters import FlowRunFilter
    from prefect.client.schemas.sorting import FlowRunSort

    begun = FlowRunFilter.model_validate({"start_time": {"is_null_": False}})
    waiting = FlowRunFilter.model_validate({"state": {"type": {"any_": ["SCHEDULED"]}}})
    with get_client(sync_client=True) as client:
        of_pool = {"work_pool_name": POOL}
        answer = client.request("POST", "/work_pools/{work_pool_name}/workers/filter", path_params=of_pool, json={})
        workers = [worker["name"] for worker in answer.json() if worker.get("status") == "ONLINE"]
        recent = client.read_flow_runs(flow_run_filter=begun, sort=FlowRunSort.START_TIME_DESC, limit=SHOWN_RUNS)
        found = client.read_flow_runs(flow_run_filter=waiting, sort=FlowRunSort.EXPECTED_START_TIME_ASC, limit=200)
    return workers, recent, _first_of_each(found)


def _first_of_each(runs: Iterable[FlowRun]) -> list[FlowRun]:
    first: dict[object, FlowRun] = {}
    for run in runs:
        first.setdefault(run.deployment_id or run.id, run)
    return list(first.values())


def _past(run: FlowRun) -> str:
    name = run.state.name if run.state else "unknown"
    said = " ".join((run.state.message or "").split())[:100] if run.state and name in ("Failed", "Crashed") else ""
    seconds = run.total_run_time.total_seconds()
    return f"{_local(run.start_time)}  {name:<10} {run.name} ({seconds:.0f} s) {said}".rstrip()


def _coming(run: FlowRun) -> str:
    return f"{_local(run.expected_start_time)}  {run.name}"


def _local(moment: datetime | None) -> str:
    return (moment or datetime.now(UTC)).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _gpus() -> list[str]:
    lines = []
    for gpu in gpus.visible_gpus():
        held = gpus.held_bytes(gpu_leases(), gpu.name)
        shares = ", ".join(f"{holder} {size / 2**30:.1f} GiB" for holder, size in held.items())
        lines.append(f"gpu      {gpu.name} {gpu.memory / 2**30:.0f} GiB: {shares or 'free'}")
    return lines


def _files(root: Path) -> list[str]:
    sizes = [f"{name} {(root / name).stat().st_size / 1e6:.1f} MB" for name in NOTED if (root / name).is_file()]
    return [f"files    {', '.join(sizes)}"] if sizes else []


def main() -> None:
    """Command line of this module."""
    try:
        lines, is_up = status(Path.cwd())
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    print("\n".join(lines))
    sys.exit(0 if is_up else 1)


if __name__ == "__main__":
    main()
