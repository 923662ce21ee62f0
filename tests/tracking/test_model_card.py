"""The card of a registered version says what the run folder and the data say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.register import register
from tests.tracking.conftest import Project
from tests.tracking.test_promotion import CLIENTS, Registered

PNG = b"\x89PNG"


def test_a_version_carries_its_card(project: Project, client: Any) -> None:
    world = Registered(project)
    world.partition.with_suffix(".png").write_bytes(PNG)
    facts = {"partition": world.hash, "clients": {"training": CLIENTS, "unseen": 0}}
    for seed, score in ((0, 0.5), (1, 0.75)):
        project.add("fedavg", seed, val=(score,) * 3, test=(score,) * 3, **facts)
    register(project.root, project.root / "runs", project.comparison(), project.dataset, world.partition)
    version = client.get_model_version("digits-global", "1")
    folder = Path(client.get_model_version_download_uri("digits-global", "1").removeprefix("file://")) / "card"
    assert (folder / "partition.png").read_bytes() == PNG
    text, html = (folder / "card.md").read_text(), (folder / "card.html").read_text()
    assert text.startswith("# digits-global: fedavg, seed 1\n")
    headings = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    assert headings == [
        "Data",
        "Clients",
        "Method and parameters",
        "Results",
        "Who does worst",
        "Limits",
        "Lineage",
    ]
    # Mean 62.5, s = 17.678; t(0.975, 1) = 12.7062: half width 12.7062 * 17.678 / sqrt(2) = 158.8.
    assert "| `global/val/accuracy` | 75.0 | 62.5 | -96.3 to 221.3 |" in text
    assert "| of them used | 24 train, 24 validation, 24 test |" in text
    assert "![examples by label and client](partition.png)" in text
    assert f"The {CLIENTS} clients with the lowest test accuracy" in text
    worst = text.split("## Who does worst")[1].split("##")[0]
    assert "They were chosen by that accuracy" in worst
    assert "95 %" not in worst, "an interval for a client named beforehand is none for the lowest of many"
    assert "2 seed(s): little is known" in text
    assert "`c0ffee`" in text
    assert "<table>" in html
    assert '<img src="partition.png"' in html
    first, *rest = version.description.split("\n")
    assert first == "fedavg, seed 1: 75.0 % on validation"
    assert "- `global/val/accuracy`: **75.0**; 62.5 (-96.3 to 221.3)" in rest
    assert text.startswith("# digits-global: fedavg, seed 1\n\nOne model for everybody")
    assert len(version.description) < 5000
    assert version.tags["file.model.safetensors"]
