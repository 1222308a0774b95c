"""Every Python snippet in the docs and the README runs as it stands; every example runs."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OPTIONAL = {"lightning", "torchcfm", "k_diffusion"}  # packages of which test_trainers.py runs the examples
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SNIPPETS = [
    pytest.param(code, id=f"{page.name}:{number}")
    for page in PAGES
    for number, code in enumerate(
        re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M), 1
    )
]


def optional(code):
    return OPTIONAL & set(re.findall(r"^(?:from|import) (\w+)", code, re.M))


EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.py")) if not optional(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("code", SNIPPETS)
def test_snippet_runs(code, tmp_path, monkeypatch):
    for package in optional(code):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "snippet", "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example_runs(example, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWAY_EXAMPLE_STEPS", "4")
    runpy.run_path(str(example), run_name="__main__")


def test_why_stable_says_what_the_records_say():
    check = subprocess.run([sys.executable, str(ROOT / "docs" / "why_stable.py"), "--check"], check=False)
    assert check.returncode == 0, "run: python docs/why_stable.py"


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
