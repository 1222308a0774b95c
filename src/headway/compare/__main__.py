"""One cell of a study as a process: python -m headway.compare STUDY.yaml OUT ARM SEED. Under torchrun it spans its processes."""

from __future__ import annotations

import sys
from pathlib import Path

from headway.compare.cell import run_cell
from headway.compare.study import Study
from headway.errors import HeadwayError


def main(arguments: list[str]) -> int:
    file, out, arm, seed = arguments
    try:
        run_cell(Study.load(file), Path(out), arm, int(seed))
    except HeadwayError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
