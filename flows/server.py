"""Where the Prefect server of this project is, and whether it answers."""

from __future__ import annotations

import contextlib
import urllib.request
from collections.abc import Iterator
from urllib.parse import urlsplit

from prefect.settings import PREFECT_API_URL, temporary_settings

LOOPBACK = ("127.0.0.1", "localhost", "::1")
DEFAULT_URL = "http://127.0.0.1:4200/api"
BUSY_SECONDS = 60.0


def api_url() -> str:
    """Return the API address in force: PREFECT_API_URL, else prefect.toml's, else Prefect's own default port."""
    return (PREFECT_API_URL.value() or DEFAULT_URL).rstrip("/")


def address(url: str) -> tuple[str, int]:
    """Return host and port of a loopback API address.

    Raises
    ------
    ValueError
        When the address is not on this machine: the server has no passwords.
    """
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname not in LOOPBACK or parts.port is None or parts.path != "/api":
        raise ValueError(
            f"PREFECT_API_URL is {url!r}: the server started here listens on this machine only; "
            f"unset it, or give http://127.0.0.1:<port>/api"
        )
    return parts.hostname, parts.port


def is_healthy(url: str, timeout: float = 2.0) -> bool:
    """Return whether a Prefect server answers at this API address."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never ask a proxy for this machine
    try:
        with opener.open(f"{url}/health", timeout=timeout) as answer:
            return bool(answer.status == 200 and answer.read(16).strip() == b"true")
    except (OSError, ValueError):
        return False


@contextlib.contextmanager
def with_or_without_server() -> Iterator[None]:
    """Use the configured server if it answers, else a temporary one for this process."""
    # Where nobody listens the answer comes at once; a server on a busy machine is given time.
    if is_healthy(api_url(), timeout=BUSY_SECONDS):
        yield
        return
    with temporary_settings({PREFECT_API_URL: None}):
        yield
