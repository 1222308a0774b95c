"""The rooms of the package: imports go one way, and the maths rooms need torch alone."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "headway"

# A file may import its own room and the rooms of the lines above its own, never a neighbour on the same line.
ROOMS = [
    ["errors"],
    ["noise", "weighting", "optim", "images", "coupling", "landscape", "page"],
    ["frameworks"],
    ["denoiser", "ideal"],
    ["sampling"],
    ["backbones", "data", "consistency"],
    ["metrics"],  # measures images, so it knows data; data does not know it
    ["recipes"],
    ["training"],
    ["gan"],
    ["studies"],
    ["compare"],
    ["experiments"],
    ["cli"],
    ["integrations"],
    ["__main__"],
    ["__init__"],  # the front door: knows every room, and no room knows it (but for its version)
]
# Stricter than their room's line: all that these files may import of Headway.
NARROW = {
    "sampling.solvers": ["errors"],
    "compare.crossing": ["errors"],
    "compare.statistics": ["errors", "compare.crossing"],
    "integrations.lightning": ["errors", "optim"],
}
# The maths rooms: torch and the standard library, less what touches files, processes or the environment.
MATHS = ["noise", "weighting", "frameworks", "denoiser", "ideal", "optim", "sampling.solvers", "sampling.grids"]
MATHS += ["consistency.scores", "consistency.gaussian", "consistency.trajectories"]
# Maths on arrays: numpy and scipy too.
NUMERICAL = ["landscape", "compare.crossing", "compare.statistics"]
NOT_MATHS = {"os", "pathlib", "io", "sys", "shutil", "subprocess", "multiprocessing", "tempfile", "logging", "pickle"}

FILES = sorted(SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    """src/headway/noise/density.py -> noise.density; a room's __init__.py -> the room; the package's own -> __init__."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def within(name: str, rooms: list[str]) -> bool:
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


def imports(source: str) -> list[str]:
    """Every module a file imports, anywhere in it, also for type checking alone."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [alias.name for alias in node.names]
            found += [f"headway.{name}" for name in names] if node.module == "headway" else [node.module or ""]
    return found


def faults(name: str, source: str) -> list[str]:
    """What a file of that name imports and may not."""
    room = name.split(".")[0]
    level = next(i for i, rooms in enumerate(ROOMS) if room in rooms)
    allowed = NARROW.get(name, [room, *(r for rooms in ROOMS[:level] for r in rooms)])
    wrong = []
    for module in imports(source):
        top, _, rest = module.partition(".")
        if top == "headway":
            if rest != "__version__" and not within(rest, allowed):
                wrong.append(module)
        elif within(name, MATHS + NUMERICAL):
            also = {"torch", "numpy", "scipy"} if within(name, NUMERICAL) else {"torch"}
            if top not in also and (top not in sys.stdlib_module_names or top in NOT_MATHS):
                wrong.append(module)
    return wrong


def test_every_file_is_in_a_room():
    known = {room for rooms in ROOMS for room in rooms}
    assert FILES
    assert {name_of(path).split(".")[0] for path in FILES} == known, "the table of rooms and the package differ"
    assert {*NARROW, *MATHS, *NUMERICAL} <= {name_of(path) for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_go_one_way(path):
    wrong = faults(name_of(path), path.read_text(encoding="utf-8"))
    assert not wrong, f"{name_of(path)} imports {', '.join(wrong)}"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("noise.density", "from headway.frameworks import framework"),
        ("frameworks.vp", "def f():\n    from headway.denoiser import Denoiser"),
        ("data.feed", "import headway.metrics.frechet"),
        ("training.loop", "from headway import studies"),
        ("training.loop", "from headway import sample"),
        ("sampling.solvers", "from headway.frameworks.base import Framework"),
        ("sampling.solvers", "from headway.sampling.grids import GRIDS"),
        ("sampling.grids", "import numpy as np"),
        ("optim.ema", "from pathlib import Path"),
        ("denoiser", "import os.path"),
        ("ideal", "from diffusers import UNet2DModel"),
    ],
)
def test_the_check_sees_a_wrong_import(name, line):
    assert faults(name, line)
