"""The record of a night: what came, what drifted, what was trained, what was promoted, and what is wrong."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from tasks.accepted import now
from tasks.files import atomic_write_text, read_json, write_json

FOLDER = Path("reports/nightly")
RUNNING = FOLDER / ".running.json"
Status = Literal["promoted", "kept", "unchanged", "failed"]
_NAMED = 3  # failed trainings whose reason is an error of its own; the table of the report has all
_SHOWN = 20  # clients with drift in the report; the JSON file has all


@dataclass
class Night:
    """One run of the nightly flow.

    Attributes
    ----------
    name : str
        Its date, and a number from the second run of a day on; names its files.
    experiment : str
        Empty until the parameters have been read.
    flow_run : str or None
        Id of the Prefect flow run.
    started, ended : str
        ISO 8601 with the offset from UTC; `ended` is empty while it runs.
    stage : str
        What it does, or was doing when it ended.
    intake, drift : mapping or None
        What `tasks.intake` and `tasks.data_drift` wrote; None when they did not get that far.
    training : mapping
        ``done`` or what went wrong, by ``<method>-<seed>``.
    promotion : list of mappings or None
        What `tasks.promotion` wrote; None when no challenger was considered.
    errors : list of str
        Why nothing was promoted; one line each.
    warnings : list of str
        What somebody should look at although the night went on.
    """

    name: str
    experiment: str = ""
    flow_run: str | None = None
    started: str = field(default_factory=now)
    ended: str = ""
    stage: str = "beginning"
    intake: dict[str, Any] | None = None
    drift: dict[str, Any] | None = None
    training: dict[str, str] = field(default_factory=dict)
    promotion: list[dict[str, Any]] | None = None
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def status(self) -> Status:
        """How it ended."""
        if self.errors:
            return "failed"
        outcomes = self.promotion or []
        if any(outcome["promoted"] for outcome in outcomes):
            return "promoted"
        return "kept" if any(outcome["challenger"] for outcome in outcomes) else "unchanged"

    @property
    def outcomes(self) -> list[str]:
        """What became of the challengers, one line each."""
        return [outcome_line(outcome) for outcome in self.promotion or []] or ["nothing to promote"]

    @property
    def message(self) -> str:
        """Everything in one line."""
        if self.errors:
            promoted = [outcome["model"] for outcome in self.promotion or [] if outcome["promoted"]]
            what = f"{', '.join(promoted)} promoted" if promoted else "nothing was promoted"
            return f"{what}: {'; '.join(self.errors)}"
        parts = self.outcomes
        if self.warnings:
            parts.append(f"{len(self.warnings)} warning{'s' if len(self.warnings) > 1 else ''}: {self.warnings[0]}")
        return "; ".join(parts)

    def note_intake(self, taken: dict[str, Any]) -> None:
        """Note what was taken in; a rejected file is a warning."""
        self.intake = taken
        self.warnings += [f"rejected {one['file']}: {one['reason']}" for one in taken["rejected"]]

    def note_drift(self, drift: dict[str, Any], stop: bool) -> None:
        """Note the drift; it is a warning, or an error if it is to stop the night."""
        self.drift = drift
        if drift["drifted"]:
            clients = [line.split(":")[0] for line in drift["drifted"]]
            more = f" and {len(clients) - 3} more" if len(clients) > 3 else ""
            line = f"the data drifted for {', '.join(clients[:3])}{more}"
            (self.errors if stop else self.warnings).append(f"{line}; drift.on_drift is stop" if stop else line)

    def note_training(self, failed: dict[str, str], done: list[str]) -> None:
        """Note which trainings ended and which did not; one that did not is an error."""
        self.training = {**dict.fromkeys(done, "done"), **failed}
        if failed:
            total = len(failed) + len(done)
            self.errors.append(
                f"{len(failed)} of {total} training runs failed ({', '.join(failed)}); the others are done and kept"
            )
            self.errors += [f"{name}: {why}" for name, why in islice(failed.items(), _NAMED)]

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"status": self.status, "message": self.message, **asdict(self)}

    def table(self) -> list[dict[str, str]]:
        """Return what happened, a row per step."""
        rows = [("night", f"{self.name}: {self.status}")]
        if self.intake is not None:
            files = f"{len(self.intake['accepted'])} accepted, {len(self.intake['rejected'])} rejected"
            rows.append(("new data", f"{self.intake['rows']} examples; files: {files}"))
        if self.drift is not None:
            rows.append(("drift", "; ".join(self.drift["drifted"][:3]) or f"none ({self.drift['note']})"))
        rows += [(f"train {name}", state) for name, state in self.training.items()]
        rows += [(outcome["model"], _became(outcome)) for outcome in self.promotion or []]
        rows += [("error", line) for line in self.errors] + [("warning", line) for line in self.warnings]
        return [{"what": what, "outcome": outcome} for what, outcome in rows]

    def markdown(self) -> str:
        """Return the report for people."""
        what = f"Experiment {self.experiment}" if self.experiment else "params.yaml was not read"
        parts = [f"# Night {self.name}: {self.status}", f"{what}, {self.started} to {self.ended or 'now'}."]
        if not self.errors:
            parts += ["\n".join(f"- {line}" for line in self.outcomes)]
        for title, lines in (("Errors", self.errors), ("Warnings", self.warnings)):
            if lines:
                parts += [f"## {title}", "\n".join(f"- {_cell(line)}" for line in lines)]
        if self.intake is not None:
            parts += ["## New data", _intake_table(self.intake)]
        if self.drift is not None:
            parts += ["## Drift", self.drift["note"] + ".", _drift_table(self.drift)]
        if self.training:
            rows = [[name, state] for name, state in self.training.items()]
            parts += ["## Training", _table(["run", "state"], rows)]
        for outcome in self.promotion or []:
            reasons = (outcome.get("decision") or {}).get("reasons", [])
            parts += [f"## {outcome['model']}", *([_list(reasons)] if reasons else [_became(outcome) + "."])]
        if self.status == "promoted":
            parts.append("`make rollback` undoes the promotion.")
        return "\n\n".join(part for part in parts if part) + "\n"

    def write(self) -> tuple[Path, Path]:
        """Write the report as JSON and Markdown; return where."""
        files = FOLDER / f"{self.name}.json", FOLDER / f"{self.name}.md"
        write_json(files[0], self.as_dict())
        atomic_write_text(files[1], self.markdown())
        return files

    def enter(self, stage: str) -> None:
        """Note what begins now where the next night finds it, should this one be cut off."""
        self.stage = stage
        write_json(RUNNING, asdict(self))


def begin(name: str, flow_run: str | None = None) -> Night:
    """Return a new night, with a number after its name when there is one of that name; it enters its stages itself.

    Raises
    ------
    ValueError
        When the name cannot be a file's name.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ValueError(f"night {name!r}: use letters, digits, '.', '_' and '-' only, such as 2027-01-31")
    number, free = 1, name
    while (FOLDER / f"{free}.json").exists():
        number += 1
        free = f"{name}-{number}"
    return Night(free, flow_run=flow_run)


def cut_off() -> Night | None:
    """Return the night that did not come to its end, as it was; None when there is none.

    To be called when no other night can be running.
    """
    if not RUNNING.exists():
        return None
    try:
        night = Night(**read_json(RUNNING))
    except (TypeError, ValueError):
        RUNNING.unlink()
        return None
    promoting = night.stage == "promotion"
    night.errors.append(
        f"the night was cut off in the stage '{night.stage}': its process was killed or the machine stopped"
        + ("; it may have promoted a model, `make models` tells" if promoting else "")
    )
    return night


def ended() -> None:
    """Forget that a night runs."""
    RUNNING.unlink(missing_ok=True)


def outcome_line(outcome: dict[str, Any]) -> str:
    """Return what became of a challenger, in one line without the final stop."""
    return f"{outcome['model']}: {_became(outcome)}"


def _became(outcome: dict[str, Any]) -> str:
    champion, challenger = outcome["champion"], outcome["challenger"]
    reasons = (outcome.get("decision") or {}).get("reasons") or [""]
    why = f" ({reasons[0]})" if reasons[0] else ""
    if outcome["promoted"]:
        return f"version {challenger} promoted over {champion or 'none'}{why}"
    if challenger is None:
        return f"version {champion} is champion, nothing challenges it"
    return f"version {champion} kept, version {challenger} did not pass{why}"


def _intake_table(taken: dict[str, Any]) -> str:
    rows = [[b["file"], "accepted", str(b["rows"]), _intake_note(b)] for b in taken["accepted"]]
    rows += [[one["file"], "rejected", "", one["reason"]] for one in taken["rejected"]]
    rows += [[name, "waiting", "", "changed a moment ago"] for name in taken["waiting"]]
    return _table(["file", "state", "examples", "note"], rows) if rows else "Nothing arrived."


def _intake_note(batch: dict[str, Any]) -> str:
    notes = [f"{batch['left_out']} left out, there already"] if batch["left_out"] else []
    notes += [f"new clients: {', '.join(batch['new_clients'])}"] if batch["new_clients"] else []
    return "; ".join(notes)


def _drift_table(drift: dict[str, Any]) -> str:
    if not drift["changes"]:
        return ""
    head = ["client", "examples before", "new", "label distance", "feature that moved most", "its PSI", "drifted"]
    rows = [
        [
            change["client"],
            str(change["before"]),
            str(change["new"]),
            f"{change['label_distance']:.3f}",
            change["feature"],
            f"{change['stability_index']:.3f}",
            ", ".join(change["drifted"]) or ("no" if change["judged"] else "too few to say"),
        ]
        for change in drift["changes"][: _SHOWN + 1]
    ]
    new = f"\n\nNew clients: {', '.join(drift['new_clients'])}." if drift["new_clients"] else ""
    return _table(head, rows) + new


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _list(lines: list[str]) -> str:
    return "\n".join(f"- {_cell(line)}" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
