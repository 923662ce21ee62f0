"""The compare step on run folders small enough to check with a pencil; see the fixture ``small`` for the numbers."""

import csv
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedcore.config import Compare
from tasks import leaderboard
from tasks.compare import compare, main
from tasks.run_folder import read_runs

LABELS = ["fedavg", "ft", "local"]


def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["compare"])
    main()
    result: dict[str, Any] = json.loads((folder / "reports/comparison.json").read_text())
    return result


def test_headline_figures_are_chosen_on_validation(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fedavg: .5 and .7, mean .6 (best on test would be .6 and .7, mean .65); ft: .8 and .9, mean .85."""
    methods = run(small, monkeypatch)["methods"]
    fedavg = methods["fedavg"]["views"]["personal"]
    assert fedavg["selected_on"] == "validation"
    assert fedavg["selected"]["accuracy"]["per_seed"] == {"0": 0.5, "1": 0.7}
    assert fedavg["selected"]["accuracy"]["mean"] == pytest.approx(0.6)
    assert fedavg["selected_round"]["per_seed"] == {"0": 4, "1": 4}
    assert fedavg["test_selected"]["best"]["mean"] == pytest.approx(0.65)
    # Four rounds: the mean of the best five is the mean of all, .425 for both seeds.
    assert fedavg["test_selected"]["top5"]["mean"] == pytest.approx(0.425)
    tuned = methods["ft"]["views"]["personal"]
    assert tuned["selected"]["accuracy"]["mean"] == pytest.approx(0.85)
    assert tuned["last"]["accuracy"]["mean"] == pytest.approx(0.8)
    assert tuned["selected"]["worst_decile"]["mean"] == pytest.approx(0.2)
    assert tuned["selected"]["client_std"]["mean"] == pytest.approx(0.1)


def test_differences_are_paired_by_seed_and_by_client(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By seed: .8 - .5 = .3 and .9 - .7 = .2, mean .25, std .070711, half width 12.706205 * .05 = .635310.
    By client, averaged over seeds: .1, .0, .2 (.3 and .1); client 3 has no test example. Mean .1.
    """
    views = run(small, monkeypatch)["methods"]["ft"]["views"]
    over_seeds = views["personal"]["difference"]["seeds"]
    assert over_seeds["mean"] == pytest.approx(0.25)
    assert over_seeds["high"] - over_seeds["mean"] == pytest.approx(0.635310, abs=1e-6)
    over_clients = views["personal"]["difference"]["clients"]
    assert over_clients["mean"] == pytest.approx(0.1)
    assert (over_clients["count"], over_clients["wins"], over_clients["ties"], over_clients["losses"]) == (3, 2, 1, 0)
    assert views["global"]["difference"]["clients"] is None


def test_the_baseline_has_no_difference_and_local_no_global_view(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    methods = run(small, monkeypatch)["methods"]
    assert methods["fedavg"]["views"]["personal"]["difference"] is None
    assert list(methods["local"]["views"]) == ["personal"]


def test_targets(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """.6 personal: fedavg in rounds 3 and 4 (mean 3.5), ft in 2 and 2, speed-up 3.5 / 2 = 1.75 -> 1.8;
    both ways of 1000 bytes a round: 4000 by round 2. .95: nobody.
    """
    methods = run(small, monkeypatch)["methods"]
    reached, never = methods["ft"]["views"]["personal"]["targets"]
    assert reached["rounds"] == {"0": 2, "1": 2}
    assert (reached["mean_rounds"], reached["speed_up"], reached["mean_bytes"]) == (2.0, 1.8, 4000.0)
    assert methods["fedavg"]["views"]["personal"]["targets"][0]["mean_rounds"] == 3.5
    assert never["rounds"] == {"0": None, "1": None}
    assert (never["mean_rounds"], never["speed_up"], never["seeds_reached"]) == (None, None, 0)


def test_the_mean_of_the_last_rounds_is_compared_where_it_is_asked_for(
    small: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Personal, rounds 3 and 4: fedavg .55 and .6, mean .575; ft .75 and .85, mean .8; ft - fedavg .2 and .25."""
    parameters = small / "params.yaml"
    assert run(small, monkeypatch)["methods"]["ft"]["views"]["personal"]["average"] is None
    assert "last" not in capsys.readouterr().out.splitlines()[0]
    parameters.write_text(parameters.read_text().replace("baseline:", "average: 2, baseline:"))
    methods = run(small, monkeypatch)["methods"]
    average = methods["ft"]["views"]["personal"]["average"]
    assert average["accuracy"]["per_seed"] == {"0": pytest.approx(0.75), "1": pytest.approx(0.85)}
    assert average["accuracy"]["mean"] == pytest.approx(0.8)
    assert average["difference"]["mean"] == pytest.approx(0.225)
    assert methods["fedavg"]["views"]["personal"]["average"]["accuracy"]["mean"] == pytest.approx(0.575)
    assert methods["fedavg"]["views"]["personal"]["average"]["difference"] is None
    table = list(csv.DictReader((small / "reports/leaderboard.csv").read_text().splitlines()))
    assert float(table[0]["personal_average"]) == pytest.approx(0.8)
    assert float(table[0]["personal_average_difference"]) == pytest.approx(0.225)
    assert table[2]["global_average"] == ""
    header, first, *_, caption = capsys.readouterr().out.splitlines()
    assert "last 2: mean of the last 2 evaluated rounds" in caption
    assert "personal, last 2" in header
    assert "global, last 2" in header
    assert "80.0 ±" in first


def test_a_target_only_some_seeds_reach_has_no_mean(small: Path) -> None:
    runs = read_runs(small / "runs", LABELS, [0, 1], "digits")
    result = compare(runs, "digits", Compare(seeds=[0, 1], baseline="fedavg", targets=[0.65]))
    target = result["methods"]["fedavg"]["views"]["personal"]["targets"][0]
    assert target["rounds"] == {"0": None, "1": 4}
    assert (target["mean_rounds"], target["seeds_reached"], target["mean_bytes"]) == (None, 1, None)
    assert result["methods"]["ft"]["views"]["personal"]["targets"][0]["speed_up"] is None


def test_curves_communication_and_clients(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(small, monkeypatch)
    curve = result["methods"]["ft"]["views"]["personal"]["curve"]
    assert curve["rounds"] == [1, 2, 3, 4]
    assert curve["accuracy"]["mean"] == pytest.approx([0.45, 0.65, 0.8, 0.8])
    assert curve["accuracy"]["high"][0] == pytest.approx(0.45 + 0.070711, abs=1e-6)
    assert curve["loss"]["mean"] == pytest.approx([0.55, 0.35, 0.2, 0.2])
    assert curve["bytes"] == [2000.0, 4000.0, 6000.0, 8000.0]
    assert result["methods"]["ft"]["communication"]["total_bytes"]["mean"] == 8000.0
    accuracy = result["methods"]["ft"]["views"]["personal"]["client_accuracy"]
    assert accuracy == [pytest.approx(0.7), pytest.approx(0.6), pytest.approx(0.5), None]
    assert result["clients"]["personal"]["num_train"] == [10, 20, 30, 40]


def test_clients_never_trained_on_are_kept_apart(tmp_path: Path, make_run: Callable[..., Path]) -> None:
    """Clients 2 and 3 are unseen. Seen: .6 - .5 and .8 - .5, mean .2; unseen: .1 - .4 and .3 - .4, mean -.2."""
    view = {"test/accuracy": [0.5], "test/loss": [1.0], "val/accuracy": [0.5]}
    for label, accuracy in (("fedavg", [0.5, 0.5, 0.4, 0.4]), ("ft", [0.6, 0.8, 0.1, 0.3])):
        views = {"personal": view, "unseen": view}
        make_run(tmp_path, label, 0, views, [1], accuracy, unseen=[False, False, True, True])
    runs = read_runs(tmp_path, ["fedavg", "ft"], [0], "digits")
    result = compare(runs, "digits", Compare(seeds=[0], baseline="fedavg"))
    views = result["methods"]["ft"]["views"]
    assert views["personal"]["difference"]["clients"]["mean"] == pytest.approx(0.2)
    assert views["unseen"]["difference"]["clients"]["mean"] == pytest.approx(-0.2)
    assert views["unseen"]["client_accuracy"] == [0.1, 0.3]
    assert result["clients"]["unseen"]["client"] == [2, 3]


def test_long_client_lists_are_sampled_evenly_and_the_statistics_use_all(
    tmp_path: Path, make_run: Callable[..., Path]
) -> None:
    """1,001 clients, every third is listed (334); the difference counts 1,001."""
    for label, accuracy in (("fedavg", 0.5), ("ft", 0.6)):
        make_run(tmp_path, label, 0, {"personal": {"test/accuracy": [0.5]}}, [1], [accuracy] * 1001)
    runs = read_runs(tmp_path, ["fedavg", "ft"], [0], "digits")
    result = compare(runs, "digits", Compare(seeds=[0], baseline="fedavg"))
    assert result["clients"]["personal"]["client"] == list(range(0, 1001, 3))
    assert len(result["methods"]["ft"]["views"]["personal"]["client_accuracy"]) == 334
    assert result["methods"]["ft"]["views"]["personal"]["difference"]["clients"]["count"] == 1001


def test_order_is_by_personal_then_global_accuracy(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(small, monkeypatch)["order"] == ["ft", "fedavg", "local"]
    table = list(csv.DictReader((small / "reports/leaderboard.csv").read_text().splitlines()))
    assert [(row["rank"], row["label"]) for row in table] == [("1", "ft"), ("2", "fedavg"), ("3", "local")]
    assert float(table[0]["personal_accuracy"]) == pytest.approx(0.85)
    assert table[2]["global_accuracy"] == ""
    assert float(table[0]["personal_speed_up_0.6"]) == 1.8


def test_the_same_runs_give_the_same_bytes_whatever_the_clock_said(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(small, monkeypatch)
    names = ("reports/comparison.json", "reports/leaderboard.csv")
    before = [(small / name).read_bytes() for name in names]
    for timing in small.glob("runs/*/timing.csv"):
        timing.write_text(timing.read_text().replace("0.5", "7.5"))
    run(small, monkeypatch)
    assert [(small / name).read_bytes() for name in names] == before
    assert b"seconds" not in before[0]


def test_one_seed_has_no_interval(small: Path) -> None:
    runs = read_runs(small / "runs", LABELS, [1], "digits")
    result = compare(runs, "digits", Compare(seeds=[1], baseline="fedavg", targets=[]))
    summary = result["methods"]["ft"]["views"]["personal"]["selected"]["accuracy"]
    assert (summary["mean"], summary["std"], summary["low"], summary["high"]) == (0.9, None, None, None)
    (small / "table.csv").write_text(leaderboard.to_csv(result))
    text = leaderboard.as_text(small / "table.csv")
    assert "one seed" in text
    assert "±" not in text


def test_without_validation_the_last_round_counts_for_method_and_baseline(
    small: Path, make_run: Callable[..., Path]
) -> None:
    for seed in (0, 1):
        shutil.rmtree(small / f"runs/fedavg-{seed}")
        columns = {"test/accuracy": [0.2, 0.9, 0.4, 0.5], "test/loss": [1.0] * 4}
        views = {"personal": columns, "global": columns}
        make_run(small / "runs", "fedavg", seed, views, [1, 2, 3, 4], [0.5, 0.5, 0.5, math.nan])
    runs = read_runs(small / "runs", LABELS, [0, 1], "digits")
    assert runs["fedavg"][0].metrics["selected/personal/round"] == 4, "a run names a round all the same"
    result = compare(runs, "digits", Compare(seeds=[0, 1], baseline="fedavg"))
    view = result["methods"]["ft"]["views"]["personal"]
    assert view["selected_on"] == "last round"
    assert view["selected"]["accuracy"]["per_seed"] == {"0": 0.7, "1": 0.9}
    (small / "table.csv").write_text(leaderboard.to_csv(result))
    assert "at the last round, for want of a validation split" in leaderboard.as_text(small / "table.csv")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("metrics.json", None, "metrics.json does not exist"),
        ("metrics.json", b'{"round": 4', "metrics.json: not readable as JSON"),
        ("metrics.json", b"[1]", "expected an object"),
        ("metrics.json", b"{}", "'personal/test/accuracy' is missing"),
        ("history.csv", b"round\n", "history.csv: expected a header"),
        ("history.csv", b"round,x\n1,2\n1,2\n", "history.csv: 'round' must be whole numbers"),
        ("history.csv", b"round,x\n1,abc\n", "line 2: x is 'abc'"),
        ("history.csv", b"round,x\n1\n", "line 2 has 1 cells, expected 2"),
        ("history.csv", b"round,x\n1,2\n", "column 'personal/test/accuracy' is missing"),
        ("clients.parquet", b"nothing", "clients.parquet: not readable as parquet"),
        ("config.json", b'{"experiment": "mnist", "label": "ft", "seed": 1}', "'mnist'"),
    ],
)
def test_a_broken_run_is_one_line_with_the_way_out(small: Path, file: str, content: bytes | None, message: str) -> None:
    path = small / "runs/ft-1" / file
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=r"ft-1") as caught:
        read_runs(small / "runs", LABELS, [0, 1], "digits")
    assert len(str(caught.value).splitlines()) == 1
    assert message in str(caught.value)
    assert "run `dvc repro train@ft-1`" in str(caught.value)


def test_every_missing_run_gets_its_line_and_earlier_results_stay(small: Path) -> None:
    reports = small / "reports"
    reports.mkdir()
    (reports / "comparison.json").write_text("earlier")
    for name in ("ft-0", "local-1"):
        (small / "runs" / name).rename(small / f"away-{name}")
    command = [sys.executable, "-m", "tasks.compare"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=small, env={"PYTHONPATH": str(root)}, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "error: runs/ft-0: does not exist; run `dvc repro train@ft-0`",
        "error: runs/local-1: does not exist; run `dvc repro train@local-1`",
    ]
    assert (reports / "comparison.json").read_text() == "earlier"
    assert [path.name for path in reports.iterdir()] == ["comparison.json"]


def test_seeds_that_cannot_be_averaged_are_named(small: Path) -> None:
    path = small / "runs/ft-1/history.csv"
    path.write_text("\n".join(path.read_text().splitlines()[:-1]) + "\n")
    with pytest.raises(ValueError, match=r"ft-1: history.csv has other evaluated rounds than .*ft-0"):
        read_runs(small / "runs", LABELS, [0, 1], "digits")


def test_the_printed_table_is_aligned_and_needs_nothing_heavy(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(small, monkeypatch)
    code = (
        "import sys; sys.argv = ['compare', '--print']; from tasks.compare import main; main();"
        "print([m for m in ('torch', 'numpy', 'pandas', 'pyarrow') if m in sys.modules])"
    )
    root = Path(__file__).parents[2]
    environment = {"PYTHONPATH": str(root), "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run([sys.executable, "-c", code], cwd=small, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "[]"
    assert lines[0].split() == ["#", "method", "personal", "global", "worst", "decile", "vs", "baseline", "MB", "sent"]
    assert lines[1].split()[:5] == ["1", "ft", "85.0", "±", "63.5"]
    assert len({line.index("MB") if index == 0 else len(line) for index, line in enumerate(lines[1:4], 1)}) == 1


def test_printing_without_a_leaderboard_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="run `dvc repro compare`"):
        leaderboard.as_text(tmp_path / "leaderboard.csv")
    (tmp_path / "leaderboard.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="not a leaderboard"):
        leaderboard.as_text(tmp_path / "leaderboard.csv")
