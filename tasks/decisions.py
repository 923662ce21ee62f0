"""The gate's decision on a challenger, and the evidence it leaves: tags of the version, files of its run."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks import registry
from tasks.files import write_json

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.tracking import MlflowClient

    from fedcore.config import Gate
    from fedcore.metrics.gate import Decision

_CLEAN, _PARTITION = "lineage.clean", "lineage.partition_hash"
_GATE = "\n\n**Gate**: "  # where the latest decision begins in a version's description
_LONGEST = 1000  # characters of the reasons in a tag


def decide(
    client: MlflowClient,
    kind: str,
    gate: Gate,
    challenger: ModelVersion,
    champion: ModelVersion | None,
    dataset: Path,
    partition: Path,
) -> Decision:
    """Return the gate's decision on a challenger; `champion` is None where there is none."""
    from fedcore.metrics.gate import Decision, judge, without_champion
    from tasks import validation

    objection = _objection(challenger)
    if objection is not None:
        return Decision("keep", (objection,))
    federation, partition_hash = validation.read_federation(dataset, partition)
    if challenger.tags.get(_PARTITION) != partition_hash:
        reason = f"version {challenger.version} was trained on another partition than {partition}"
        return Decision("keep", (f"{reason}, so it may have seen its validation examples; run `dvc repro`",))
    if champion is None:
        return without_champion(gate)
    new, old = validation.contender(client, challenger), validation.contender(client, champion)
    for one in (new, old):
        difference = one.difference(federation)
        if difference is not None:
            return Decision("keep", (f"they cannot be compared: {difference}",))
    examples = federation.sizes("val")[: federation.num_clients]
    return judge(gate, kind, new.standing(federation, kind), old.standing(federation, kind), examples)


def _objection(challenger: ModelVersion) -> str | None:
    """Return why a version may not pass any gate, None when nothing is known against it."""
    tags = challenger.tags
    if registry.ROLLED_BACK in tags:
        return f"version {challenger.version} was rolled back {tags[registry.ROLLED_BACK]}"
    if tags.get(_CLEAN) == "false":
        return f"version {challenger.version} comes from a run that is marked: {tags.get('lineage.why', 'not clean')}"
    return None


def leave_evidence(
    client: MlflowClient, challenger: ModelVersion, champion: str | None, decision: Decision, force: str | None
) -> None:
    """Write the decision to the challenger's tags and, as json and markdown, to its run."""
    name, number, run = challenger.name, str(challenger.version), str(challenger.run_id)
    folder = f"gate/{name}-{number}-against-{champion or 'none'}"
    when = registry.now()
    facts = {"model": name, "challenger": number, "champion": champion, "when": when, "forced": force}
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary)
        write_json(path / "decision.json", {**facts, **decision.as_dict()})
        (path / "decision.md").write_text(decision_page(facts, decision))
        client.log_artifacts(run, temporary, folder)
    tags = {
        "gate.verdict": decision.verdict,
        "gate.reasons": "; ".join(decision.reasons)[:_LONGEST],
        "gate.against": champion or "none",
        "gate.when": when,
        "gate.evidence": f"runs:/{run}/{folder}",
    }
    if decision.evidence is not None:
        for key in ("difference", "low", "high", "worst_decile_difference"):
            value = getattr(decision.evidence, key)
            tags[f"gate.{key}"] = "unknown" if value is None else f"{value:.6f}"
        tags["gate.seeds"] = ", ".join(map(str, decision.evidence.seeds))
    for tag, value in tags.items():
        client.set_model_version_tag(name, number, tag, value)
    about = (client.get_model_version(name, number).description or "").split(_GATE)[0]
    said = f"{decision.verdict} against version {champion or 'none'}, {when}"
    if force is not None:
        said += f", but promoted by force: {' '.join(force.split())[:_LONGEST]}"
    reasons = "\n".join(f"- {reason}" for reason in decision.reasons)
    client.update_model_version(name, number, f"{about}{_GATE}{said}\n\n{reasons}")


def decision_page(facts: dict[str, Any], decision: Decision) -> str:
    """Return the decision as markdown."""
    against = f"version {facts['champion']}" if facts["champion"] else "no champion"
    lines = [f"# {facts['model']}: version {facts['challenger']} against {against}", ""]
    lines += [
        f"**{decision.verdict}**" + (f", but promoted by force: {facts['forced']}" if facts["forced"] else ""),
        "",
    ]
    lines += [f"- {reason}" for reason in decision.reasons]
    found = decision.evidence
    if found is not None:
        interval = "unknown"
        if found.low is not None and found.high is not None:
            interval = f"{100 * found.low:+.2f} to {100 * found.high:+.2f} points"
        rows = [
            (f"validation accuracy ({found.metric}), challenger", f"{100 * found.challenger:.2f} %"),
            (f"validation accuracy ({found.metric}), champion", f"{100 * found.champion:.2f} %"),
            ("paired difference", f"{100 * found.difference:+.2f} points"),
            (f"its {found.confidence:.0%} interval over clients", interval),
            (
                "differences by seed",
                ", ".join(f"{s}: {100 * d:+.2f}" for s, d in zip(found.seeds, found.by_seed, strict=True)),
            ),
            ("clients better / worse / equal", f"{found.wins} / {found.losses} / {found.ties}"),
            ("worst decile, challenger", f"{100 * found.worst_decile_challenger:.2f} %"),
            ("worst decile, champion", f"{100 * found.worst_decile_champion:.2f} %"),
            ("clients, validation examples", f"{found.num_clients}, {found.num_examples}"),
        ]
        lines += ["", "| evidence | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows)]
    return "\n".join([*lines, "", f"Decided {facts['when']}.", ""])
