"""The page "Why is it stable?" from the newest records of both experiments: this writes it, ``--check`` compares."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from string import Template
from typing import Any

from headway.experiments.landscape_verdict import claims, gans, references, techniques, unfair

DOCS = Path(__file__).parent
RECORDS = DOCS.parent / "records"
PAGE = DOCS / "why-stable.md"
TEXT = DOCS / "why-stable.md.in"
# What the prose takes for granted.
WRITTEN_FOR = {"same": "holds", "gans": "holds", "x0": "holds in part", "identity": "holds"}
LANDSCAPE_WRITTEN_FOR = {
    ("positive share of the spectrum", "generator"): "smoother",
    ("positive share of the spectrum", "discriminator"): "smoother",
    ("bumps, initial to trained", "generator"): "smoother",
    ("share of the stable step", "generator"): "rougher",
    ("change of the gradient in a step", "generator"): "rougher",
}
# The GANs that start from the weights of seed 1, the second and third by another loss and another law of them.
SAME_START = ("gan seed 1", "gan hinge", "gan normal")
ALIKE = 0.99  # a score from which two images are called the same


def newest(kind: str) -> Path:
    """The newest record of an experiment."""
    found = sorted(folder for folder in RECORDS.glob(f"*-{kind}-fashion") if (folder / "results.json").is_file())
    if not found:
        raise SystemExit(f"No record of {kind}: expected records/DATE-{kind}-fashion/results.json.")
    return found[-1]


def page() -> str:
    """The whole text."""
    consistency, landscape = newest("consistency"), newest("landscape")
    return Template(TEXT.read_text(encoding="utf-8")).substitute(
        consistency_name=consistency.name,
        landscape_name=landscape.name,
        consistency=link(consistency / "README.md"),
        landscape=link(landscape / "README.md"),
        picture=link(next(consistency.glob("same-noise*heun*.png"))),
        lines=link(landscape / "from-initial-0-to-trained-1-weights.png"),
        swap_picture=link(next(consistency.glob("two-models-swapped*.png"))),
        **of_consistency(json.loads((consistency / "results.json").read_text(encoding="utf-8"))),
        **of_landscape(json.loads((landscape / "results.json").read_text(encoding="utf-8"))),
    )


def of_consistency(found: dict[str, Any]) -> dict[str, Any]:
    """The parts that the consistency experiment fills in."""
    same, gans, x0, identity, *changes = found["verdicts"]
    groups = found["groups"]
    conditions = list(next(iter(groups.values())))
    curve, control = (found["curves"]["identity"][name] for name in (next(iter(found["quality"])), "pixel Gaussian"))
    high, low = found["curves"]["swaps"].values()
    words = {name: verdict["word"] for name, verdict in zip(WRITTEN_FOR, found["verdicts"], strict=False)}
    refuse_others(words, WRITTEN_FOR)
    every, control_scores = groups["all diffusion x diffusion"], groups["diffusion x pixel Gaussian"]
    said = {
        f"{name}_{part}": verdict[key]
        for name, verdict in (("same", same), ("gans", gans), ("x0", x0), ("identity", identity))
        for part, key in (("claim", "claim"), ("word", "word"), ("sentence", "sentence"))
    }
    games = {
        (p["a"], p["b"]): p["scores"][conditions[0]]
        for p in found["pairs"]
        if {"gan"} == {n[:3] for n in (p["a"], p["b"])}
    }
    most = max(games, key=lambda pair: games[pair][0])
    if most != SAME_START[:2]:
        raise SystemExit(
            f"{TEXT.name} was written for {SAME_START[:2]} as the GANs most alike, now {most}. Write it anew."
        )
    return said | {
        "gans_alike": " and ".join(f"`{name}`" for name in most),
        "gans_most": interval(games[most]),
        "gans_rest": f"{max(score[0] for pair, score in games.items() if not set(pair) <= set(SAME_START)):.2f}",
        "easy": f"{min(s for s, v in zip(low['at'], low['value'], strict=True) if v >= ALIKE):.2g}",
        "apart": f"{max(s for s, v in zip(high['at'], high['value'], strict=True) if v >= ALIKE):.2g}",
        "first_score": f"{every[conditions[0]][0]:.2f}",
        "control": f"{control_scores[conditions[0]][0]:.2f}",
        "models": len(found["quality"]),
        "data": "Fashion-MNIST",
        "reference": next(iter(found["quality"])),
        "conditions": " | ".join(conditions),
        "rule": "---|" * len(conditions),
        "groups": table([name, *(interval(scores[at]) for at in conditions)] for name, scores in groups.items()),
        "swaps": table([f"{sigma:.3g}", band(high, i), band(low, i)] for i, sigma in enumerate(high["at"])),
        "identity": table(
            [f"{sigma:.3g}", f"{curve['value'][i]:.4f}", f"{control['value'][i]:.4f}"]
            for i, sigma in enumerate(curve["at"])
            if i % 2 == 0 or i == len(curve["at"]) - 1
        ),
        "changes": table(
            [change["claim"].partition(": ")[2], change["word"], change["sentence"]] for change in changes
        ),
    }


def of_landscape(found: dict[str, Any]) -> dict[str, str]:
    """The parts that the landscape experiment fills in."""
    compared = claims(found)
    titles = list(dict.fromkeys(claim.figure.title for claim in compared))
    by = {(claim.figure.title, claim.player): claim for claim in compared}
    sharp = techniques(found)
    heads = list(dict.fromkeys(title for own in sharp.values() for title in own))
    players = list(dict.fromkeys(claim.player for claim in compared))
    refuse_others({key: by[key].word for key in LANDSCAPE_WRITTEN_FOR}, LANDSCAPE_WRITTEN_FOR)
    valley, saddles = (
        [fmean(getattr(by["positive share of the spectrum", player], side).values()) for player in players]
        for side in ("mine", "theirs")
    )
    counts = [
        f"Against the {player} the diffusion model is smoother by {words.count('smoother')} of {len(words)} figures and rougher by "
        f"{words.count('rougher')}."
        for player in players
        for words in [[claim.word for claim in compared if claim.player == player]]
    ]
    weak = unfair(found)
    games = [model["curvature"]["rotation"] for model in gans(found).values()]
    turning = [game.get("steps", game["weights"])[0] for game in games]
    return {
        "landscape_models": f"{len(references(found))} plain diffusion models and {len(gans(found))} GANs",
        "claims": table(
            [title, *(f"{by[title, p].word}: {by[title, p].difference}" for p in players)] for title in titles
        ),
        "counts": " ".join(counts),
        "unfair": f" Not fair, because worse than the pixel Gaussian: {', '.join(weak)}." if weak else "",
        "valley": f"{valley[0]:.2f}",
        "saddles": " and ".join(f"{value:.2f} ({player})" for value, player in zip(saddles, players, strict=True)),
        "rotation": f"{min(turning):.2f} to {max(turning):.2f}",
        "sharp_head": " | ".join(heads),
        "sharp_rule": "---|" * len(heads),
        "sharpness": table([name, *(str(own.get(title, "-")) for title in heads)] for name, own in sharp.items()),
    }


def refuse_others(words: dict[Any, str], written_for: dict[Any, str]) -> None:
    """The prose is of its verdicts: others need other prose."""
    if words != written_for:
        raise SystemExit(f"{TEXT.name} was written for other verdicts: {written_for}, now {words}. Write it anew.")


def interval(score: Sequence[float]) -> str:
    value, low, high = score
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"


def band(curve: dict[str, list[float]], i: int) -> str:
    return interval([curve[key][i] for key in ("value", "low", "high")])


def table(rows: Any) -> str:
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)


def link(path: Path) -> str:
    return f"../{path.relative_to(DOCS.parent).as_posix()}"


def main(arguments: list[str]) -> int:
    text = page()
    if arguments == ["--check"]:
        return int(not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
