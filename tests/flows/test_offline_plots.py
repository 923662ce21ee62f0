"""`dvc plots show` opens without a network: our page draws the charts itself."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest
from dvc_render import VegaRenderer
from dvc_render.html import render_html
from dvc_render.vega_templates import TEMPLATES

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / ".dvc" / "plots" / "page.html"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """Every built-in template of DVC but the animated, drawn over one small table each."""
    curve = [{"round": str(r), "accuracy": f"{r / 10}", "rev": "workspace"} for r in range(1, 6)]
    pairs = [{"actual": "cat", "predicted": guess, "rev": "workspace"} for guess in ("cat", "dog", "cat")]
    bars = [{"accuracy": "0.5", "method": name, "rev": "workspace"} for name in ("fedavg", "local")]
    tables = {"confusion": (pairs, "predicted", "actual"), "bar": (bars, "accuracy", "method")}
    renderers = []
    for template in TEMPLATES:
        name = template.DEFAULT_NAME
        rows, x, y = tables.get(name.split("_")[0], (curve, "round", "accuracy"))
        anchors = {"anchor_definitions": {}, "revs_with_datapoints": ["workspace"]}
        renderers.append(VegaRenderer(rows, f"plot-{name}", x=x, y=y, template=name, title=name, **anchors))
    assert len(renderers) > 6
    target = tmp_path / "index.html"
    render_html(renderers, target, html_template=PAGE)
    return target


def test_dvc_uses_the_page() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / ".dvc" / "config")
    assert ROOT / ".dvc" / config["plots"]["html_template"] == PAGE
    assert {config["core"][key] for key in ("analytics", "check_update", "autostage")} == {"false"}


def test_the_page_asks_no_network(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "src=" not in PAGE.read_text(encoding="utf-8")
    assert "jsdelivr" not in text
    assert text.count("vegaEmbed('#") == len(TEMPLATES)


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_a_browser_draws_every_template(page: Path, tmp_path: Path) -> None:
    assert BROWSER is not None
    command = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path}/profile",
        "--dump-dom",
    ]
    done = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    assert "cannot draw" not in done.stdout.split("<body>")[1]
    assert done.stdout.count("<svg") == len(TEMPLATES)
    assert done.stdout.count("<polyline") >= 3
