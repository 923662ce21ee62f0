"""README says what is there: its layout tree, its make targets, its links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
# Folders that hold results or caches of a run, and tools' own.
UNTRACKED = {"runs", "reports", "data", "build", "dvc_plots"}


def layout() -> dict[str, str]:
    """Return the paths of the layout tree with their remarks; two spaces of indent are one level."""
    block = re.search(r"^## Layout\n+```\n(.*?)^```", README, re.S | re.M)
    assert block, "README has no layout tree: '## Layout', then a fenced block"
    found, stack = {}, []
    for line in block[1].splitlines():
        name, _, remark = line.strip().partition("  ")
        depth = (len(line) - len(line.lstrip())) // 2
        stack[depth:] = [name.rstrip("/")]
        found["/".join(stack)] = remark.strip()
    return found


def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))


def test_layout_names_what_exists() -> None:
    assert [path for path in layout() if not (ROOT / path).exists()] == []
    assert all(layout().values()), "a path of the layout tree has no remark"


def test_layout_names_every_folder() -> None:
    folders = [path for path in ROOT.iterdir() if path.is_dir() and any(path.iterdir())]
    there = {path.name for path in folders if not path.name.startswith(".")}
    there = {name for name in there if name not in UNTRACKED and not name.endswith(".egg-info")}
    assert there - set(layout()) == set()
    parts = {f"fedcore/{p.name}" for p in (ROOT / "fedcore").iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert parts - set(layout()) == set()


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`(?:[A-Z_]+=\S+ )?make ([a-z-]+)", text)) | set(re.findall(r"^make ([a-z-]+)", text, re.M))
    assert named - targets() == set()


def test_readme_explains_the_targets_without_make() -> None:
    assert {target for target in targets() if f"`make {target}`" not in README} - {"help"} == set()


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text):
        if not target.startswith(("http://", "https://")):
            assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"


def test_every_command_of_dvc_yaml_is_a_task() -> None:
    commands = re.findall(r"python -m (tasks\.\w+)", (ROOT / "dvc.yaml").read_text(encoding="utf-8"))
    assert commands
    assert [name for name in commands if not (ROOT / f"{name.replace('.', '/')}.py").exists()] == []
