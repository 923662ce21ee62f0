"""`python -m tasks.predict`: tables in, predictions out, mistakes in one line."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from safetensors.numpy import load_file, save

from fedcore.engine.serving import Service
from tasks import predict as step
from tasks import question_files
from tasks.question_files import read_questions
from tasks.register import register
from tasks.served_version import opened_version
from tests.tracking.conftest import CLASSES, CommandLine, Project, Run, logits_by_hand


@pytest.fixture
def run(command_line: CommandLine) -> Run:
    return command_line(step)


def table(clients: list[int], inputs: np.ndarray | None = None) -> pd.DataFrame:
    inputs = np.arange(4 * len(clients)).reshape(-1, 4) % 17 if inputs is None else inputs
    return pd.DataFrame({"client_id": clients} | {f"x{number}": inputs[:, number] for number in range(4)})


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_every_row_is_answered_by_its_clients_model(registry: Project, run: Run, ending: str) -> None:
    clients = [7, 99, 3, 3, -1]
    rows = table(clients)
    source, target = Path(f"rows.{ending}"), Path("out") / f"answers.{ending}"
    rows.to_csv(source, index=False) if ending == "csv" else rows.to_parquet(source)
    code, out, err = run(str(source), str(target), "--model", "digits-personal", "--logits")
    assert (code, err) == (0, [])
    assert out == [
        "digits-personal version 1 (local) answered",
        f"{target}: 5 rows",
        "2 rows are of clients without a model of their own (such as -1, 99): answered by the global model,"
        " known_client is false",
    ]
    found = pd.read_csv(target) if ending == "csv" else pd.read_parquet(target)
    columns = ["client_id", "known_client", "label", "class_name", "probability", "logit_0", "logit_1", "logit_2"]
    assert list(found) == columns
    expected = logits_by_hand(registry, list(clients), rows.iloc[:, 1:].to_numpy())
    assert np.allclose(found[columns[-CLASSES:]], expected, atol=1e-5)
    assert found["client_id"].tolist() == clients
    assert found["known_client"].tolist() == [True, False, True, True, False]
    assert found["label"].tolist() == expected.argmax(axis=1).tolist()
    assert found["class_name"].astype(str).tolist() == [str(label) for label in found["label"]]
    powers = np.exp(expected)
    assert np.allclose(found["probability"], (powers / powers.sum(axis=1, keepdims=True)).max(axis=1), atol=1e-5)


def test_the_global_model_needs_no_client(registry: Project, run: Run) -> None:
    rows = table([0, 0])[["x3", "x1", "x0", "x2"]]
    rows.to_csv("rows.csv", index=False)
    code, out, _ = run("rows.csv", "answers.csv", "--model", "digits-global@champion", "--logits")
    assert (code, out[0]) == (0, "digits-global version 1 (fedavg) answered")
    found = pd.read_csv("answers.csv")
    assert "known_client" not in found
    expected = logits_by_hand(registry, [None, None], rows[["x0", "x1", "x2", "x3"]].to_numpy())
    assert np.allclose(found[["logit_0", "logit_1", "logit_2"]], expected, atol=1e-5)


def test_the_experiment_of_the_parameters_is_asked_by_default(registry: Project, run: Run) -> None:
    table([3]).to_csv("rows.csv", index=False)
    parameters = (Path(__file__).parents[2] / "params.yaml").read_text()
    Path("params.yaml").write_text(parameters)
    assert run("rows.csv", "answers.csv")[:2] == (
        0,
        ["digits-personal version 1 (local) answered", "answers.csv: 1 rows"],
    )
    assert run("rows.csv", "answers.csv", "--version", "1")[0] == 0
    assert run("rows.csv", "answers.csv", "--kind", "global")[1][0] == "digits-global version 1 (fedavg) answered"
    expected = "error: there is no kind 'globl'; did you mean 'global'? Valid: global, personal"
    assert run("rows.csv", "answers.csv", "--kind", "globl") == (1, [], [expected])


def test_features_may_be_a_list_named_columns_or_images(registry: Project, run: Run) -> None:
    inputs = np.array([[0, 16, 255, 3], [5, 6, 7, 8]])
    for name, row in zip(("one.png", "two.png"), inputs, strict=True):
        Image.fromarray(row.astype(np.uint8).reshape(2, 2), "L").save(name)
    rows = table([3, 7], inputs)
    rows.to_csv("columns.csv", index=False)
    rows.rename(columns={f"x{n}": name for n, name in enumerate("abcd")}).to_csv("named.csv", index=False)
    pd.DataFrame({"client_id": [3, 7], "features": list(inputs.astype(float))}).to_parquet("lists.parquet")
    pd.DataFrame({"client_id": [3, 7], "image": ["one.png", "two.png"]}).to_csv("images.csv", index=False)
    encoded = [Path(name).read_bytes() for name in ("one.png", "two.png")]
    pd.DataFrame({"client_id": [3, 7], "image": encoded}).to_parquet("images.parquet")
    answers = []
    for name in ("columns.csv", "named.csv", "lists.parquet", "images.csv", "images.parquet"):
        more = ("--columns", "a,b,c,d") if name == "named.csv" else ()
        code, _, err = run(name, "answers.csv", "--model", "digits-personal", *more)
        assert (code, err) == (0, []), name
        answers.append(Path("answers.csv").read_text())
    assert answers == answers[:1] * 5


def test_a_table_is_read_in_parts_and_rows_are_counted_through(
    registry: Project, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20,000 rows of some 30 bytes in blocks of 64 kB; the mistake is in one of the last parts."""
    monkeypatch.setattr(question_files, "_BYTES", 1 << 16)
    monkeypatch.setattr(question_files, "_VALUES", 4 * 1000)
    sizes: list[int] = []
    answer = Service.answer

    def counted(self: Service, inputs: Any, clients: Any) -> Any:
        sizes.append(len(inputs))
        return answer(self, inputs, clients)

    monkeypatch.setattr(Service, "answer", counted)
    rows = table(list(np.resize([3, 7, 8], 20_000)))
    for ending in ("csv", "parquet"):
        sizes.clear()
        rows.to_csv("rows.csv", index=False) if ending == "csv" else rows.to_parquet("rows.parquet")
        assert run(f"rows.{ending}", f"answers_{ending}.csv", "--model", "digits-personal")[0] == 0
        assert (sum(sizes), len(sizes) > 3, max(sizes) < 10_000) == (20_000, True, True)
    assert Path("answers_csv.csv").read_bytes() == Path("answers_parquet.csv").read_bytes()
    broken = rows.astype(object)
    broken.loc[19_000, "x2"] = "many"
    broken.to_csv("rows.csv", index=False)
    code, _, err = run("rows.csv", "new.csv", "--model", "digits-personal")
    assert (code, err) == (1, ["error: rows.csv: column 'x2' holds 'many' in row 19000, expected a number"])
    assert list(Path().glob("*new.csv*")) == []


GOOD = "client_id,x0,x1,x2,x3\n3,0,1,2,3\n"
MISTAKES = {
    "no client": ("x0,x1,x2,x3\n0,1,2,3\n", "there is no column 'client_id', which says whose model answers; add it, or"
                  " ask the global model: MODEL=<experiment>-global"),
    "few features": ("client_id,x0,x1,x2\n3,0,1,2\n", "there is no column 'x3'; the model takes 4 (1 x 2 x 2) features"
                     " in columns x0 to x3, or a column 'image'"),
    "many features": ("client_id,x0,x1,x2,x3,x4\n3,0,1,2,3,4\n", "column 'x4' is one too many; the model takes"
                      " 4 (1 x 2 x 2) features in columns x0 to x3, or a column 'image'"),
    "twice": ("client_id,x0,x1,x2,x3,x3\n3,0,1,2,3,4\n", "there are 2 columns 'x3', expected one"),
    "gap": (GOOD + "3,0,,2,3\n", "column 'x1' has no value in row 1, expected a number"),
    "nan": (GOOD + "3,0,nan,2,3\n", "column 'x1' holds nan in row 1, expected a finite number"),
    "text": (GOOD + "3,0,1,2,three\n", "column 'x3' holds 'three' in row 1, expected a number"),
    "client with a fraction": (GOOD + "3.5,0,1,2,3\n", "column 'client_id' holds '3.5' in row 1, expected a whole"
                               " number"),
    "client without a number": (GOOD + ",0,1,2,3\n", "column 'client_id' has no value in row 1, expected a whole"
                                " number"),
    "client with a name": (GOOD + "ann,0,1,2,3\n", "column 'client_id' holds 'ann' in row 1, expected a whole number"),
    "client beyond 64 bits": (GOOD + f"{2**63},0,1,2,3\n", f"column 'client_id' holds '{2**63}' in row 1, expected a"
                              " whole number"),
    "short row": (GOOD + "3,0,1,2\n", "not readable as CSV (CSV parse error: Row #3: Expected 5 columns, got 4:"
                  " 3,0,1,2)"),
    "empty": ("", "not readable as CSV (Empty CSV file)"),
    "no image": ("client_id,image\n3,nowhere.png\n", "column 'image' in row 0: not readable as an image ([Errno 2] No"
                 " such file or directory: 'nowhere.png')"),
    "image of another size": ("client_id,image\n3,big.png\n", "column 'image' in row 0: the image is 3 x 5 pixels"
                              " (height x width), expected 2 x 2"),
    "no path": ('client_id,image\n3,""\n', "column 'image' in row 0: expected the path of an image, or an image, got"
                " ''"),
    "list in a CSV": ('client_id,features\n3,"[0,1,2,3]"\n', "column 'features' must hold lists of numbers, got string;"
                      " in a CSV use x0, x1, ..."),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_line_and_leaves_nothing(registry: Project, run: Run, case: str) -> None:
    text, message = MISTAKES[case]
    Image.new("L", (5, 3)).save("big.png")
    Path("rows.csv").write_text(text)
    Path("answers.csv").write_text("earlier")
    before = sorted(path.name for path in Path().iterdir())
    code, out, err = run("rows.csv", "answers.csv", "--model", "digits-personal")
    assert (code, out) == (1, [])
    assert err == [f"error: rows.csv: {message}"]
    assert Path("answers.csv").read_text() == "earlier"
    assert sorted(path.name for path in Path().iterdir()) == before


LISTS = {
    "short": ([[1.0, 2.0]], "has 2 features in row 0, expected 4 (1 x 2 x 2)"),
    "null": ([[1.0] * 4, None], "has no value in row 1, expected 4 (1 x 2 x 2)"),
    "text": ([["a"] * 4], "must hold lists of numbers, got lists of string"),
}


@pytest.mark.parametrize("case", LISTS)
def test_wrong_lists_of_features(registry: Project, run: Run, case: str) -> None:
    lists, message = LISTS[case]
    pd.DataFrame({"client_id": [3] * len(lists), "features": lists}).to_parquet("rows.parquet")
    code, _, err = run("rows.parquet", "answers.csv", "--model", "digits-personal")
    assert (code, err) == (1, [f"error: rows.parquet: column 'features' {message}"])
    assert not Path("answers.csv").exists()


def test_a_list_with_a_value_that_is_not_finite(registry: Project, run: Run) -> None:
    lists = [[1.0] * 4, [1.0, np.inf, 0.0, 0.0]]
    pd.DataFrame({"client_id": [3, 3], "features": lists}).to_parquet("rows.parquet")
    _, _, err = run("rows.parquet", "answers.csv", "--model", "digits-personal")
    assert err == ["error: rows.parquet: feature 1 in row 1 is inf, expected a finite number"]


FILES = ("rows.csv", "a.csv")
ARGUMENTS = {
    "no such input": (("none.csv", "a.csv"), "none.csv: does not exist"),
    "input of another kind": (("rows.xlsx", "a.csv"), "rows.xlsx: expected a file ending in .csv or .parquet"),
    "output of another kind": (("rows.csv", "a.json"), "a.json: expected a file ending in .csv or .parquet"),
    "output over input": (("rows.csv", "./rows.csv"), "rows.csv: is the input; the output needs another name"),
    "no such model": ((*FILES, "--model", "digit-personal"), "there is no registered model 'digit-personal'; did you"
                      " mean 'digits-personal'? Valid: digits-global, digits-personal"),
    "no such alias": ((*FILES, "--model", "digits-personal@champ"), "model 'digits-personal' has no alias 'champ'; did"
                      " you mean 'champion'? Valid: champion"),
    "no such version": ((*FILES, "--version", "9"), "model 'digits-personal' has no version 9; valid: 1"),
    "version that is none": ((*FILES, "--version", "latest"), "version 'latest' is no number; expected 1, 2, ..."),
    "alias and version": ((*FILES, "--model", "digits-personal@champion", "--version", "1"), "model"
                          " 'digits-personal@champion' names an alias, so version '1' is one too many; give one of"
                          " them"),
    "model and kind": ((*FILES, "--kind", "global"), "model 'digits-personal' says which kind, so kind 'global' is one"
                       " too many"),
    "few columns": ((*FILES, "--columns", "x0,x1"), "2 columns are named, expected 4 (1 x 2 x 2)"),
    "wrong column": ((*FILES, "--columns", "x0,x1,x2,y3"), "rows.csv: there is no column 'y3'. Valid: client_id, x0,"
                     " x1, x2, x3"),
}  # fmt: skip


@pytest.mark.parametrize("case", ARGUMENTS)
def test_wrong_arguments(registry: Project, run: Run, case: str) -> None:
    arguments, message = ARGUMENTS[case]
    Path("rows.csv").write_text(GOOD)
    Path("rows.xlsx").write_text("")
    model = () if "--model" in arguments else ("--model", "digits-personal")
    assert run(*arguments, *model) == (1, [], [f"error: {message}"])
    assert Path("rows.csv").read_text() == GOOD
    assert not list(Path().glob("a.*"))


def test_without_any_model_the_way_to_one_is_named(project: Project, run: Run) -> None:
    Path("rows.csv").write_text(GOOD)
    expected = "error: there is no registered model 'digits-personal', and no other; run `dvc repro register`"
    assert run("rows.csv", "a.csv", "--model", "digits-personal") == (1, [], [expected])


def test_a_version_whose_files_are_gone(project: Project, run: Run) -> None:
    project.add("local", 0)
    register(project.root, project.root / "runs", project.comparison(), project.dataset)
    shutil.rmtree(project.root / "mlruns" / "artifacts")
    Path("rows.csv").write_text(GOOD)
    code, _, err = run("rows.csv", "a.csv", "--model", "digits-personal")
    assert (code, len(err)) == (1, 1)
    assert err[0].startswith("error: digits-personal version 1: its files are gone (file:")
    assert err[0].endswith("run `dvc repro -f register`")


def test_files_that_are_not_those_that_were_registered_answer_nothing(project: Project, client: Any, run: Run) -> None:
    for label in ("fedavg", "local"):
        project.add(label, 0, val=(0.5, 0.75, 0.625) if label == "local" else (0.25, 0.5, 0.375))
    register(project.root, project.root / "runs", project.comparison(), project.dataset)
    Path("rows.csv").write_text(GOOD)
    folders = {}
    for kind in ("global", "personal"):
        source = client.get_model_version_download_uri(f"digits-{kind}", "1")
        folders[kind] = Path(source.removeprefix("file://"))
        weights = folders[kind] / "artifacts" / "run" / "model.safetensors"
        others = weights.with_name("personal.safetensors").read_bytes()
        flipped = others[:-1] + bytes([others[-1] ^ 1])
        not_numbers = save({name: np.full_like(value, np.nan) for name, value in load_file(weights).items()})
        damages = {"run/model.safetensors": [others, not_numbers, b""], "run/config.json": [b"{}"]}
        if kind == "personal":
            damages |= {"run/personal.safetensors": [flipped], "fallback/model.safetensors": [not_numbers]}
        for name, contents in damages.items():
            file = folders[kind] / "artifacts" / name
            right = file.read_bytes()
            for content in contents:
                file.write_bytes(content)
                assert (name, *run("rows.csv", "a.csv", "--model", f"digits-{kind}")) == (
                    name,
                    1,
                    [],
                    [
                        f"error: digits-{kind} version 1: {name} is missing or not the file that was registered"
                        f" ({source}); put it back from a backup, or move that folder away and run"
                        " `dvc repro -f register`, which stores the present winner's files again"
                    ],
                )
                assert not Path("a.csv").exists()
            file.write_bytes(right)
        assert run("rows.csv", "a.csv", "--model", f"digits-{kind}")[0] == 0
        Path("a.csv").unlink()
    file.write_bytes(b"")
    folders["personal"].rename("away")
    register(project.root, project.root / "runs", project.comparison(), project.dataset)
    assert run("rows.csv", "a.csv", "--model", "digits-personal")[0] == 0


def test_a_table_without_rows_gets_an_answer_without_rows(registry: Project, run: Run) -> None:
    Path("rows.csv").write_text("client_id,x0,x1,x2,x3\n")
    assert run("rows.csv", "answers.csv", "--model", "digits-personal")[0] == 0
    assert len(pd.read_csv("answers.csv")) == 0


def test_a_process_asked_to_end_leaves_nothing(registry: Project, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("rows.csv").write_text(GOOD)
    monkeypatch.setattr(Service, "answer", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    assert run("rows.csv", "answers.csv", "--model", "digits-personal")[0] == 143
    assert [path.name for path in Path().iterdir()] == ["rows.csv"]
    assert signal.getsignal(signal.SIGTERM) == before


def test_token_ids_are_checked(registry: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("rows.csv").write_text(GOOD + "3,0,1,2,9\n")
    with opened_version(Path(), argparse.Namespace(model="digits-personal", kind="", version="")) as version:
        service = version.service()
    monkeypatch.setattr(service._predictor, "num_tokens", 9)
    with pytest.raises(ValueError, match=r"rows\.csv: column 'x3' in row 1 is 9\.0, expected a token id 0\.\.8$"):
        list(read_questions(Path("rows.csv"), service))
