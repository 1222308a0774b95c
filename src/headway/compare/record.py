"""What a study or an experiment leaves: its page, and where it is asked for a dated record with a line in the index of records."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch

from headway.page import Page
from headway.recipes.sections import DataSection
from headway.training.run import write_text

INDEX_HEAD = (
    "# Records",
    "",
    "Dated, measured results; one line each. Lower distances are better; ratios are the baseline's number over the arm's.",
    "",
    "| date | question | data | hardware | arms | verdict | record |",
    "|---|---|---|---|---|---|---|",
)


@dataclass(frozen=True)
class Entry:
    """What the index says of a record, beside its date, the hardware and the link: ``arms`` are arms or models, listed."""

    question: str
    data: str
    arms: str
    verdict: str


def keep(page: Page, out: Path, files: Sequence[str], record: Path | None, entry: Entry) -> Path:
    """The page as ``out``/report.html; with a ``record`` folder also there, as Markdown too, with ``files`` of ``out``.

    Args:
        files: names of what else of ``out`` belongs to the record: the study's file and its results.
        record: named DATE-NAME, in the folder of records, whose INDEX.md gets (or has replaced) a line.

    Returns:
        The page in ``out``.
    """
    write_text(out / "report.html", page.html())
    if record is not None:
        record.mkdir(parents=True, exist_ok=True)
        text, pictures = page.markdown()
        for name in (*files, "report.html"):
            shutil.copyfile(out / name, record / name)
        write_text(record / "README.md", text)
        for name, picture in pictures.items():
            (record / name).write_bytes(picture)
        _index(record, entry)
    return out / "report.html"


def images_of(data: DataSection) -> str:
    """What a recipe trains on, for people: "fashion 8x8"."""
    if data.size == "auto":
        return str(data.source)
    height, width = data.size if isinstance(data.size, tuple) else (data.size, data.size)
    return f"{data.source} {height}x{width}"


def versions() -> str:
    """What it ran on, for people."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} CPU cores"
    return f"headway {version('headway')}, torch {torch.__version__}, Python {platform.python_version()}, {device}"


def _index(record: Path, entry: Entry) -> None:
    index = record.parent / "INDEX.md"
    lines = index.read_text(encoding="utf-8").splitlines() if index.is_file() else list(INDEX_HEAD)
    lines = [line for line in lines if f"({record.name}/" not in line]
    hardware = versions().rsplit(", ", 1)[-1]
    link = f"[{record.name}]({record.name}/README.md)"
    cells = (record.name[:10], entry.question, entry.data, hardware, entry.arms, entry.verdict, link)
    write_text(index, "\n".join([*lines, f"| {' | '.join(cells)} |"]) + "\n")
