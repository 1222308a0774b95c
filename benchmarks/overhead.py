"""What every technique costs in a training step: its own calls timed alone, over the median step of the `small` backbone.

python benchmarks/overhead.py --record records/DATE-overhead
"""

from __future__ import annotations

import argparse
import json
import platform
from dataclasses import asdict
from datetime import date
from pathlib import Path

import torch

from headway.studies.overhead import SETUP, overheads

BOUND = 0.01


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    step, costs = overheads(options.device, repeats=50, steps=9)
    where = torch.cuda.get_device_name() if options.device == "cuda" else f"{platform.machine()} CPU"
    optimisers = [c for c in costs if c.setting.startswith("optim.name")]
    over = [c.setting for c in costs if c.share >= BOUND and c not in optimisers]
    adamw = next(c for c in optimisers if c.setting == "optim.name=adamw")
    beside = ", ".join(
        f"{c.setting.partition('=')[2]} {100 * (c.share - adamw.share):+.2g}" for c in optimisers if c is not adamw
    )
    lines = [
        "# What the techniques cost in a training step",
        "",
        f"{date.today()}, torch {torch.__version__}, {where}, {torch.get_num_threads()} thread(s). One step takes "
        f"{1000 * step:.4g} ms: {SETUP}. Each technique's own calls of one step, timed alone; what it replaces is not subtracted.",
        "",
        f"At or above {BOUND:.0%} of a step: {', '.join(over) or 'none'}. An optimiser replaces AdamW, which the step "
        f"contains with {100 * adamw.share:.2g} %; in its place, in % of the step: {beside}.",
        "",
        "| technique | ms | % of a step |",
        "|---|---|---|",
        *(f"| `{c.setting}` | {1000 * c.seconds:.3g} | {100 * c.share:.2g} |" for c in costs),
        "",
        f"Command: `OMP_NUM_THREADS={torch.get_num_threads()} python benchmarks/overhead.py --record {options.record}`",
        "",
    ]
    options.record.mkdir(parents=True, exist_ok=True)
    (options.record / "README.md").write_text("\n".join(lines), encoding="utf-8")
    rows = [{"step_seconds": step, **asdict(c)} for c in costs]
    (options.record / "results.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
