"""Tell people about a night: a webhook that gets JSON, an e-mail. No address and no password is ever shown."""

from __future__ import annotations

import json
import smtplib
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from email.message import EmailMessage
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from fedcore import config as settings
from fedcore.config import validate_section
from tasks.parameters import parse

if TYPE_CHECKING:
    from tasks.nightly import Night

TIMEOUT = 20.0  # seconds
_HERE = ("127.0.0.1", "localhost", "::1")
Lookup = Callable[[str], str | None]


class NotifyError(RuntimeError):
    """Nobody was told; the message holds no secret."""


def read_section(path: Path | str = "params.yaml") -> settings.Notify:
    """Read the section ``notify`` alone: a mistake elsewhere is what people are to be told.

    Raises
    ------
    ValueError
        When the file is no YAML, or the section is wrong.
    """
    values = parse(Path(path).read_text(encoding="utf-8"), str(path))
    section = validate_section(settings.Notify, values.get("notify") or {}, ("notify",))
    assert isinstance(section, settings.Notify)
    return section


def notify(night: Night, section: settings.Notify, lookup: Lookup) -> list[str]:
    """Tell those that `section` names about a night; return one line per way that failed.

    Parameters
    ----------
    lookup : callable
        Returns the secret of a name, None if there is none.
    """
    if section.when == "problems" and not (night.errors or night.warnings):
        return []
    problems = []
    for way, name, send in (("webhook", section.webhook, post), ("email", section.email, mail)):
        if name is None:
            continue
        secret = lookup(name)
        try:
            if not secret:
                raise NotifyError(f"'{name}' is neither an environment variable nor a Secret block")
            send(secret, night)
        except NotifyError as error:
            problems.append(f"notify.{way}: nobody was told, {error}")
    return problems


def payload(night: Night) -> dict[str, Any]:
    """Return what a webhook gets; chat services show ``text``."""
    text = f"{night.experiment or 'fedcore'}, night {night.name}: {night.status}. {night.message}"
    own = ("name", "experiment", "started", "ended", "flow_run", "errors", "warnings")
    return {"text": text, "status": night.status, **{key: getattr(night, key) for key in own}}


def post(url: str, night: Night) -> None:
    """POST the night as JSON.

    Raises
    ------
    NotifyError
        When the address is none, or the answer is not 2xx.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise NotifyError("the value is no http:// or https:// address")
    body = json.dumps(payload(night), ensure_ascii=False).encode()
    try:
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=TIMEOUT):
            pass
    except urllib.error.HTTPError as error:
        raise NotifyError(f"the server answered {error.code}") from None
    except (OSError, ValueError, HTTPException) as error:
        # The error's text may repeat the address, which often is the secret.
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise NotifyError(f"the server could not be reached ({type(reason).__name__})") from None


def mail(address: str, night: Night) -> None:
    """Send the report by e-mail.

    Parameters
    ----------
    address : str
        ``smtp://user:password@host:port?from=a@x&to=b@x,c@x`` (STARTTLS where the server has it; a password is
        sent encrypted only, except to this machine), or ``smtps://...``. User and password are percent-encoded.

    Raises
    ------
    NotifyError
        When the address is incomplete, or the server refuses.
    """
    parts = urlsplit(address)
    query = parse_qs(parts.query)
    if parts.scheme not in ("smtp", "smtps") or not parts.hostname or not query.get("from") or not query.get("to"):
        raise NotifyError("the value is not smtp://user:password@host:port?from=...&to=...")
    message = EmailMessage()
    message["Subject"] = f"[{night.experiment or 'fedcore'}] night {night.name}: {night.status}"
    message["From"], message["To"] = query["from"][0], ", ".join(query["to"])
    message.set_content(night.markdown())
    try:
        with _connection(parts) as server:
            server.ehlo()
            encrypted = parts.scheme == "smtps"
            if not encrypted and server.has_extn("starttls"):
                server.starttls(context=ssl.create_default_context())
                encrypted = True
            if parts.username:
                if not encrypted and parts.hostname not in _HERE:
                    raise NotifyError("the mail server has no STARTTLS, and a password is not sent in the clear")
                server.login(unquote(parts.username), unquote(parts.password or ""))
            server.send_message(message)
    except (OSError, ValueError, smtplib.SMTPException) as error:
        raise NotifyError(f"the mail server could not be reached or refused ({type(error).__name__})") from None


def _connection(parts: SplitResult) -> smtplib.SMTP:
    host = str(parts.hostname)
    if parts.scheme == "smtps":
        return smtplib.SMTP_SSL(host, parts.port or 465, timeout=TIMEOUT, context=ssl.create_default_context())
    return smtplib.SMTP(host, parts.port or 587, timeout=TIMEOUT)
