"""Every framework, plain and with every kind of momentum, trained on digits for one equal budget; one table.

    python benchmarks/frameworks_on_digits.py --out runs/frameworks --record records/DATE-frameworks-digits --jobs 2

Runs are separate processes of one thread. Killed and started again it goes on; a run that fails is shown as failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from statistics import mean
from typing import Any

from headway.training import Run

KINDS = ("plain", "released", "literal", "propagated", "unit")
ARMS = [(f, k) for f in ("vp", "ve", "edm", "flow") for k in KINDS if (f, k) != ("edm", "literal")]


def run_arm(framework: str, kind: str, seed: int, images: str, out: Path) -> Path:
    """Train and evaluate one arm, unless that is done already."""
    folder = out / f"{framework}-{kind}-{seed}"
    if Run(folder).evaluations():
        return folder
    momentum = "null" if kind == "plain" else kind
    settings = [
        f"framework.name={framework}",
        f"momentum={momentum}",
        f"train.images={images}",
        f"train.seed={seed}",
        "log.samples=0",
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with (out / f"{folder.name}.log").open("a") as log:
        for command in (["train", "digits-edm", *settings, "--out", str(folder)], ["evaluate", str(folder)]):
            python = [sys.executable, "-m", "headway", *command]
            subprocess.run(python, env=environment, stdout=log, stderr=log, check=False)
    return folder


def row(framework: str, kind: str, folders: list[Path]) -> dict[str, Any]:
    """One line of the table: the distances of all seeds, or what failed."""
    found = [(Run(folder), Run(folder).evaluations()) for folder in folders]
    values = [evaluations[-1]["value"] for _, evaluations in found if evaluations]
    last = next((evaluations[-1] for _, evaluations in found if evaluations), None)
    seconds = [run.metrics()[-1]["seconds"] for run, evaluations in found if evaluations]
    return {
        "framework": framework,
        "momentum": kind,
        "values": values,
        "failed": len(folders) - len(values),
        "metric": last and last["name"],
        "nfe": last and last["nfe"],
        "floor": last and last["floor"],
        "ceiling": last and last["ceiling"],
        "seconds": seconds,
    }


def table(rows: list[dict[str, Any]], images: str, command: str) -> str:
    measured = next(r for r in rows if r["metric"])
    lines = [
        "# Every framework, plain and with every kind of momentum, on digits",
        "",
        f"{date.today()}. 8x8 handwritten digits, network `tiny`, {images} training images a run, the same seeds for all, Heun, "
        f"{measured['nfe']} NFE; {measured['metric']} over the classifier. One thread a run, two runs at a time.",
        f"Floor (real held-out images, as many): {measured['floor']:.2f}. Ceiling (a Gaussian with the training pixels' mean "
        f"and covariance): {measured['ceiling']:.1f}. Lower is better. Two seeds: a difference below about 20 % means nothing.",
        "",
        "| framework | momentum | each seed | mean | to the framework's plain | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for r in rows:
        plain = next(p for p in rows if p["framework"] == r["framework"] and p["momentum"] == "plain")
        ratio = f"{mean(r['values']) / mean(plain['values']):.2f}" if r["values"] and plain["values"] else "-"
        worst = max(r["values"], default=float("inf"))
        verdict = (
            "failed: no figure"
            if r["failed"]
            else "failed: above the pixel Gaussian"
            if worst >= r["ceiling"]
            else "trains"
        )
        each = ", ".join(f"{v:.1f}" for v in r["values"]) or "-"
        average = f"{mean(r['values']):.1f}" if r["values"] else "-"
        lines.append(f"| {r['framework']} | {r['momentum']} | {each} | {average} | {ratio} | {verdict} |")
    return "\n".join([*lines, "", f"Command: `{command}`", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/frameworks"))
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--images", default="100k")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    # The first run trains and caches the classifier; the others would all do so at once.
    jobs = [(framework, kind, seed) for seed in range(options.seeds) for framework, kind in ARMS]
    run_arm(*jobs[0], options.images, options.out)
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda job: run_arm(*job, options.images, options.out), jobs))
    rows = [row(f, k, [options.out / f"{f}-{k}-{seed}" for seed in range(options.seeds)]) for f, k in ARMS]
    options.record.mkdir(parents=True, exist_ok=True)
    (options.record / "results.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    command = (
        f"python benchmarks/frameworks_on_digits.py --images {options.images} --seeds {options.seeds} "
        f"--jobs {options.jobs} --record {options.record}"
    )
    text = table(rows, options.images, command)
    (options.record / "README.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
