"""A night on Prefect's pages: the name of its run, its artifacts, and its end where a kill kept it from telling."""

from __future__ import annotations

import json
from datetime import date
from typing import Any
from uuid import UUID

import httpx
from prefect import get_client
from prefect.client.schemas.actions import ArtifactCreate
from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter
from prefect.client.schemas.objects import State
from prefect.exceptions import PrefectException
from prefect.runtime import flow_run
from prefect.states import Crashed

from tasks.nightly import Night

# A server that ended, or that is another one than the night began with; the report on disk does not need it.
_NO_ANSWER = (PrefectException, httpx.HTTPError, OSError, RuntimeError, ValueError)
_RUNNING = {"state": {"type": {"any_": ["RUNNING", "PENDING"]}}}


def run_name() -> str:
    """Return the name of the flow run that begins: the night's, as far as it is known by then."""
    return f"night {flow_run.parameters.get('night') or date.today().isoformat()}"


def attach(night: Night) -> list[str]:
    """Attach a night's table and report to its own flow run, and how it ended as a tag, which lists of runs show.

    Returns what went wrong, one line or none.
    """
    said, table = f"Night {night.name}: {night.message}", json.dumps(night.table())
    title = f"Night {night.name}: {night.status}"
    try:
        run = UUID(night.flow_run) if night.flow_run else None
        with get_client(sync_client=True) as client:
            client.create_artifact(
                ArtifactCreate(key="night", type="table", data=table, description=said, flow_run_id=run)
            )
            client.create_artifact(
                ArtifactCreate(
                    key="night-report", type="markdown", data=night.markdown(), description=title, flow_run_id=run
                )
            )
            if run is not None:
                tags = set(client.read_flow_run(run).tags) | {night.status}
                client.update_flow_run(run, tags=sorted(tags))
    except _NO_ANSWER as error:
        return [f"the run's page does not show the report, the server did not take it ({type(error).__name__})"]
    return []


def end_lost_run(night: Night) -> list[str]:
    """Call the flow run of a night that was cut off crashed, unless somebody has; it would be shown as running.

    Returns what went wrong, one line or none.
    """
    if night.flow_run in (None, flow_run.get_id()):  # the server may start a killed run again, as the same run
        return []
    crashed: State[Any] = Crashed(message=night.message)
    try:
        run_id = UUID(night.flow_run)
        of_run = FlowRunFilter.model_validate({"id": {"any_": [run_id]}})
        with get_client(sync_client=True) as client:
            run = client.read_flow_run(run_id)
            if run.state is None or not run.state.is_final():
                running = TaskRunFilter.model_validate(_RUNNING)
                for task in client.read_task_runs(flow_run_filter=of_run, task_run_filter=running):
                    client.set_task_run_state(task.id, crashed, force=True)
                client.set_flow_run_state(run_id, crashed, force=True)
    except _NO_ANSWER as error:
        return [f"night {night.name} may be shown as running, the server did not mark it ({type(error).__name__})"]
    return []
