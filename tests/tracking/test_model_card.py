"""The card of a registered version says what the run folder and the data say."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from fedcore.data import dataset as datasets
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


class Page(HTMLParser):
    """The tags of a page, and what its table cells show."""

    def __init__(self, page: str):
        super().__init__()
        self.tags: set[str] = set()
        self.cells: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.cells:
            self.cells[-1] += data


def test_class_names_are_shown_and_not_run(project: Project, client: Any) -> None:
    names = (
        "<img src=x onerror=alert(1)>",
        "![a](https://example.org/a.png) <https://example.org>",
        "*a* _b_ `c` \\ &lt; | [d](https://example.org)",
    )
    world = Registered(project)
    datasets.save(replace(datasets.load(project.dataset), class_names=names), project.dataset)
    inputs = {"shape": [1, 2, 2], "class_names": names, "offset": [8.0], "scale": [0.125]}
    project.add("fedavg", 0, partition=world.hash, clients={"training": CLIENTS, "unseen": 0}, input=inputs)
    register(project.root, project.root / "runs", project.comparison(), project.dataset, world.partition)
    folder = Path(client.get_model_version_download_uri("digits-global", "1").removeprefix("file://")) / "card"
    page = Page((folder / "card.html").read_text())
    cells = [cell.strip() for cell in page.cells]
    assert not page.tags & {"img", "script", "a", "em"}
    assert f"3: {', '.join(names)}" in cells
    assert any(cell.startswith(f"{names[0]} (") for cell in cells)
