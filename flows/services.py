"""One long-running service under its guard, and the watch that starts it again when it ends."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from flows.logs import bound, last_line, open_log
from flows.processes import Guarded
from flows.recovery import ServeError

MOST_RESTARTS = 5
WINDOW_SECONDS = 600.0
POLL_SECONDS = 0.5


class Service:
    """A command that should always run, its output in a log of bounded size.

    Parameters
    ----------
    name
        What people call it.
    command, environment
        What is run, and the whole environment of it.
    log
        Where its output goes.
    grace
        Seconds it gets to end in order.
    """

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path, grace: float = 15.0
    ):
        self.name, self.command, self.environment, self.log, self.grace = name, command, environment, log, grace
        self._process: Guarded | None = None
        self._output: IO[bytes] | None = None

    def start(self) -> None:
        """Start it; a log of the start before is kept beside the new one."""
        self._output = open_log(self.log)
        self._process = Guarded(self.command, environment=self.environment, output=self._output, grace=self.grace)

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        assert self._process is not None, "start it first"
        return self._process.poll()

    def stop(self) -> None:
        """End it and all it started; nothing to do when it never ran."""
        if self._process is not None:
            self._process.stop()
        if self._output is not None:
            self._output.close()
        self._process = self._output = None


def watch(
    services: Sequence[Service],
    *,
    ready: Mapping[str, Callable[[], None]],
    mend: Mapping[str, Callable[[], None]],
    most_restarts: int = MOST_RESTARTS,
) -> None:
    """Keep the services running and their logs small; returns only by an exception.

    Parameters
    ----------
    services
        They run already.
    ready, mend
        By a service's name, what to wait for after its new start, and what to put right before it.
    most_restarts
        Restarts of one service that are tolerated within ten minutes.

    Raises
    ------
    ServeError
        When a service ends once more than that.
    """
    restarts: dict[str, deque[float]] = {service.name: deque() for service in services}
    while True:
        for service in services:
            bound(service.log)
            if service.poll() is not None:
                _restart(service, restarts[service.name], ready, mend, most_restarts)
        time.sleep(POLL_SECONDS)


def _restart(
    service: Service,
    times: deque[float],
    ready: Mapping[str, Callable[[], None]],
    mend: Mapping[str, Callable[[], None]],
    most_restarts: int,
) -> None:
    now = time.monotonic()
    while times and now - times[0] > WINDOW_SECONDS:
        times.popleft()
    said = _last_words(service)
    if len(times) >= most_restarts:
        raise ServeError(f"the {service.name} ended {len(times) + 1} times: {said} (all of it: {service.log})")
    times.append(now)
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} the {service.name} ended ({said}); starting it again", flush=True)
    service.stop()
    if service.name in mend:
        mend[service.name]()
    service.start()
    if service.name in ready:
        ready[service.name]()


def _last_words(service: Service) -> str:
    code = service.poll() or 0
    return f"killed by signal {code - 128}" if 128 < code < 160 else last_line(service.log)
