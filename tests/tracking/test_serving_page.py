"""What docs/serving.md shows works as it stands."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tasks.serve_model import CONTENT_TYPES
from tests.tracking.conftest import Project
from tests.tracking.test_serve_model import application, listening, loaded

PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")


def requests() -> list[tuple[str, Any]]:
    """Return content type and body of every curl command."""
    found = re.findall(
        r"^curl http://127\.0\.0\.1:5001/invocations -H 'Content-Type: ([^']+)'[ \\\n]+-d '([^']+)'", PAGE, re.M
    )
    assert len(found) == PAGE.count("curl http")
    return [(kind, json.loads(body)) for kind, body in found]


def rows_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    split = body.get("dataframe_split")
    return (
        body["dataframe_records"]
        if split is None
        else [dict(zip(split["columns"], row, strict=True)) for row in split["data"]]
    )


def test_requests_are_the_digits_first_example() -> None:
    from sklearn.datasets import load_digits

    first = load_digits().images[0].ravel().tolist()
    bodies = [body for kind, body in requests() if kind in CONTENT_TYPES]
    assert [row["features"] for body in bodies[:2] for row in rows_of(body)] == [first, first]


def test_requests_get_the_answers_the_page_tells_of(registry: Project) -> None:
    """The model of the tests takes 4 features instead of 64; everything else is as it stands."""
    wrong = json.loads(re.search(r"^```json\n(.*?)^```", PAGE, re.S | re.M)[1])  # type: ignore[index]
    *right, (kind, short) = requests()
    with listening(application(loaded("digits-personal"))) as client:
        for content_type, body in right:
            text = re.sub(r"\[0, 0, 5, 13[^]]*\]", "[0, 0, 5, 13]", json.dumps(body)).encode()
            status, answer = client.ask(text, content_type)
            assert status == 200, answer
            names = {"label", "class_name", "probability", "probabilities", "known_client"}
            names |= {"logits"} if "params" in body else set()
            assert [set(row) for row in answer["predictions"]] == [names]
        status, answer = client.ask(short, kind)
        assert status == 400
        assert answer == json.loads(json.dumps(wrong).replace("64 (1 x 8 x 8)", "4 (1 x 2 x 2)"))


def test_the_table_to_try_it_with_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data/datasets/digits").mkdir(parents=True)
    inputs = np.arange(10 * 64, dtype=np.uint8).reshape(10, 1, 8, 8)
    np.save("data/datasets/digits/inputs.npy", inputs, allow_pickle=False)
    code = re.search(r"^```python\n(import numpy.*?)^```", PAGE, re.S | re.M)
    assert code
    exec(code[1], {})
    rows = pd.read_csv("rows.csv")
    assert list(rows) == ["client_id", *(f"x{number}" for number in range(64))]
    assert np.array_equal(rows.iloc[:, 1:], inputs[:6].reshape(6, 64))
