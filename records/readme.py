"""The README's table of results, from the index of records: python records/readme.py writes it, --check compares."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- from records/INDEX.md by records/readme.py -->", "<!-- end -->"


def table(index: str) -> str:
    """Question, data, verdict and link of each record, the newest first."""
    rows = [
        [cell.strip() for cell in line.strip("| ").split(" | ")]
        for line in index.splitlines()
        if line.startswith("| 20")
    ]
    lines = ["| question | data | verdict |", "|---|---|---|"]
    for _, question, data, _, _, verdict, link in reversed(rows):
        target = link.partition("](")[2].rstrip(")")
        lines.append(f"| [{question}](records/{target}) | {data} | {verdict} |")
    return "\n".join(lines)


def updated(readme: str, index: str) -> str:
    """The README with the table in its place."""
    before, _, rest = readme.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"README.md has no place for the table: expected {BEGIN} and {END}.")
    return f"{before}{BEGIN}\n{table(index)}\n{END}{after}"


def main(arguments: list[str]) -> int:
    readme = ROOT / "README.md"
    old = readme.read_text(encoding="utf-8")
    new = updated(old, (ROOT / "records" / "INDEX.md").read_text(encoding="utf-8"))
    if arguments == ["--check"]:
        return int(old != new)
    readme.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
