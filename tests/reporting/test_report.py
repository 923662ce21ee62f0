"""The page: self-contained, deterministic, honest, and able to show whatever a comparison holds."""

import copy
import json
import re
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tasks import findings
from tasks.compare import main as compare
from tasks.report import main as report

VOID = {"meta", "link", "br", "img", "hr"}


class Reader(HTMLParser):
    """Collect links, checks that every element is closed, gathers the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.pictures: list[dict[str, str | None]] = []
        self.identifiers: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href", "srcset", "data")]
        self.identifiers += [values["id"] or ""] if "id" in values else []
        if tag == "svg":
            self.pictures.append(values)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def build(folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> str:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["compare"])
    compare()
    names = ["--partition", "data/partitions/digits.npz", "--dataset", "data/datasets/digits"]
    monkeypatch.setattr(sys, "argv", ["report", *names, *more])
    report()
    return (folder / "reports/index.html").read_text()


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    return reader


def test_the_page_is_whole_and_loads_nothing(
    lifelike: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lifelike(tmp_path, ["fedavg", "local", "fedavg_ft", "fedprox"], [0, 1, 2], rounds=6)
    page = build(tmp_path, monkeypatch)
    reader = read(page)
    assert "<script" not in page
    assert "url(" not in page
    assert "@import" not in page
    assert [link for link in reader.links if not link.startswith("#")] == ["data:,"]
    assert {link[1:] for link in reader.links if link.startswith("#")} <= set(reader.identifiers)
    assert all(p.get("aria-hidden") or (p.get("role") == "img" and p.get("aria-label")) for p in reader.pictures)
    assert "nan" not in re.sub(r"[a-z]nan|nan[a-z]", "", reader.text.lower())
    assert "None" not in reader.text
    for heading in ("Leaderboard", "Curves", "Who holds what", "Clients, one by one", "Time, on this machine"):
        assert f"<h2>{heading}</h2>" in page
    assert "fedavg + prox (mu 0.01)" in page
    assert "prefers-color-scheme: dark" in page


def test_the_contact_sheet_of_the_virtual_data_is_on_the_page(
    lifelike: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lifelike(tmp_path, ["fedavg"], [0], rounds=2)
    assert "Virtual data" not in build(tmp_path, monkeypatch, "--virtual", "data/virtual/digits")
    folder = tmp_path / "data/virtual/digits"
    folder.mkdir(parents=True)
    (folder / "contact.png").write_bytes(b"\x89PNG picture")
    with (tmp_path / "params.yaml").open("a") as file:
        file.write("\nvirtual: {generator: noise, per_class: 7, seed: 3}\n")
    page = build(tmp_path, monkeypatch, "--virtual", "data/virtual/digits")
    assert 'src="data:image/png;base64,iVBORyBwaWN0dXJl"' in page
    assert "generator noise, 7 images of each class, seed 3" in page


def test_the_mean_of_the_last_rounds_is_on_the_page_where_it_is_asked_for(
    lifelike: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lifelike(tmp_path, ["fedavg", "local"], [0, 1], rounds=4)
    assert "mean of the last" not in build(tmp_path, monkeypatch)
    parameters = tmp_path / "params.yaml"
    parameters.write_text(parameters.read_text().replace("baseline:", "average: 3, baseline:"))
    page = build(tmp_path, monkeypatch)
    assert "None" not in read(page).text
    comparison = json.loads((tmp_path / "reports/comparison.json").read_text())
    average = comparison["methods"]["fedavg"]["views"]["global"]["average"]["accuracy"]["mean"]
    table = page[page.index("of the last 3</small></th>") :]
    assert f"{100 * average:.1f}" in table[: table.index("</table>")]


def test_the_page_shows_the_numbers_of_the_comparison(
    lifelike: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lifelike(tmp_path, ["fedavg", "local"], [0, 1], rounds=4)
    page = build(tmp_path, monkeypatch)
    comparison = json.loads((tmp_path / "reports/comparison.json").read_text())
    for label in comparison["order"]:
        for view in comparison["methods"][label]["views"].values():
            summary = view["selected"]["accuracy"]
            half = 100 * (summary["high"] - summary["low"]) / 2
            assert f'<b>{100 * summary["mean"]:.1f}</b> <small class="near">± {half:.1f}</small>' in page
    from fedcore.data import partitions

    assert partitions.load(tmp_path / "data/partitions/digits.npz").content_hash in page


def test_only_the_time_section_depends_on_the_clock(
    lifelike: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lifelike(tmp_path, ["fedavg", "local"], [0, 1], rounds=4)
    first = build(tmp_path, monkeypatch)
    assert build(tmp_path, monkeypatch) == first
    for timing in tmp_path.glob("runs/*/timing.csv"):
        timing.write_text(timing.read_text().replace("0.5", "7.5"))
    second = build(tmp_path, monkeypatch)
    assert second != first

    def outside(page: str) -> str:
        return re.sub(r"<!-- time: begin -->.*<!-- time: end -->", "", page, flags=re.DOTALL)

    assert outside(first) == outside(second)


@pytest.mark.parametrize("methods", [["fedavg"], ["fedavg", "local"], [f"method-{n}" for n in range(14)]])
def test_one_seed_and_one_or_many_methods(
    methods: list[str], lifelike: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lifelike(tmp_path, methods, [3], rounds=3)
    page = build(tmp_path, monkeypatch)
    reader = read(page)
    assert "one seed" in reader.text
    assert "±" not in reader.text
    assert ("other methods" in reader.text) == (len(methods) > 12)


def test_names_are_escaped(lifelike: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lifelike(tmp_path, ["fedavg", "ft"], [0], rounds=2)
    for path in tmp_path.glob("runs/ft-*/config.json"):
        config = json.loads(path.read_text())
        path.write_text(json.dumps({**config, "settings": {"note": "<script>alert(1)</script>"}}))
    assert "<script" not in build(tmp_path, monkeypatch)


def test_a_partition_of_other_data_is_refused(
    lifelike: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np

    from fedcore.data.partitions import PartitionTable, save

    lifelike(tmp_path, ["fedavg"], [0], rounds=2)
    table = PartitionTable(np.zeros(5, np.int32), np.array([0, 0, 1, 1, 2], np.int8), 1, 0, "{}")
    save(table, tmp_path / "data/partitions/digits.npz")
    with pytest.raises(ValueError, match="partition has 5 rows but the data set 'digits' has 1800"):
        build(tmp_path, monkeypatch)
    assert not (tmp_path / "reports/index.html").exists()


def test_a_partition_that_lacks_a_client_of_the_comparison_is_refused(
    lifelike: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np

    from fedcore.data.partitions import PartitionTable, save

    lifelike(tmp_path, ["fedavg"], [0], rounds=2)
    rows = np.arange(1800)
    save(
        PartitionTable((rows % 2).astype(np.int32), (rows % 3).astype(np.int8), 2, 0, "{}"),
        tmp_path / "data/partitions/digits.npz",
    )
    with pytest.raises(ValueError, match=r"comparison has client \d+ but the partition's are 0\.\.1; run `dvc repro c"):
        build(tmp_path, monkeypatch)


def test_a_missing_timing_file_names_the_stage(
    lifelike: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lifelike(tmp_path, ["fedavg"], [0], rounds=2)
    (tmp_path / "runs/fedavg-0/timing.csv").unlink()
    with pytest.raises(ValueError, match=r"timing.csv does not exist; run `dvc repro train@fedavg-0`"):
        build(tmp_path, monkeypatch)


def summary(values: list[float]) -> dict[str, Any]:
    from fedcore.metrics.comparison import summarise

    return {**summarise(values).as_dict(), "per_seed": {str(i): v for i, v in enumerate(values)}}


def comparison(first: list[float], second: list[float], baseline: str = "fedavg") -> dict[str, Any]:
    """Return a comparison of ``ft`` with `first` and ``fedavg`` with `second`, personal view only."""
    gap = summary([a - b for a, b in zip(first, second, strict=True)])
    views = {
        "ft": {"personal": {"selected": {"accuracy": summary(first)}, "difference": {"seeds": gap}}},
        "fedavg": {"personal": {"selected": {"accuracy": summary(second)}, "difference": None}},
    }
    methods = {label: {"views": view} for label, view in views.items()}
    return {"baseline": baseline, "seeds": list(range(len(first))), "order": ["ft", "fedavg"], "methods": methods}


def test_the_headline_says_when_the_lead_is_clear() -> None:
    text = findings.headline(comparison([0.90, 0.91, 0.92], [0.70, 0.71, 0.72]))
    assert text.startswith("ft has the highest personal accuracy: 91.0 % ± 2.5 (95 % interval over 3 seeds).")
    assert "+20.0 points on fedavg (paired 95 % interval +20.0 to +20.0)" in text
    assert "do not overlap" in text


def test_the_headline_says_when_intervals_overlap_and_the_order_is_open() -> None:
    """Differences .04, -.02, .01: mean .01, std .03, half width .0745: includes zero."""
    text = findings.headline(comparison([0.84, 0.80, 0.82], [0.80, 0.82, 0.81]))
    assert "+1.0 points on fedavg, but the paired 95 % interval −6.5 to +8.5 includes zero" in text
    assert "the two intervals overlap and the paired difference includes zero, so their order is open" in text


def test_the_headline_tells_overlap_from_a_paired_lead() -> None:
    """Seeds differ a lot, methods by .02 in each: the intervals overlap, the pairs agree."""
    text = findings.headline(comparison([0.72, 0.82, 0.92], [0.70, 0.80, 0.901]))
    assert "the two intervals overlap, yet paired by seed the lead holds" in text


def test_the_headline_says_when_two_methods_are_level() -> None:
    assert "ft is level with it in every seed" in findings.headline(comparison([0.8, 0.9], [0.8, 0.9]))


def test_the_headline_of_one_seed_claims_no_order() -> None:
    text = findings.headline(comparison([0.9], [0.8]))
    assert "one seed, so no interval" in text
    assert "the order is not evidence" in text
    assert "±" not in text


def test_the_headline_says_when_nothing_beats_the_baseline() -> None:
    found = comparison([0.70, 0.71, 0.72], [0.90, 0.91, 0.92])
    text = findings.headline({**copy.deepcopy(found), "order": ["fedavg", "ft"]})
    assert "fedavg has the highest" in text
    assert "no other method is ahead" in text
