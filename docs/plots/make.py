"""The plots of the documentation's technique pages. ``python docs/plots/make.py`` writes them beside itself (a few seconds)."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes

import headway
from headway.coupling import immiscible
from headway.noise import Density, EntropyRate, TaskDifficulty, build, stratified

BASES = {name: headway.framework(name).density for name in ("vp", "ve", "edm", "flow")}
SIGMA = torch.logspace(-3, 3, 1200, dtype=torch.float64)
GREY = "#999999"


def curve(axes: Axes, density: Density, progress: float = 0.0, **style: object) -> None:
    """The density per unit of ln sigma."""
    axes.plot(SIGMA, density.log_prob(SIGMA, progress).exp() * SIGMA, **{"linewidth": 1.3, **style})


def sigma_axis(axes: Axes, title: str) -> None:
    axes.set(xscale="log", xlabel="$\\sigma$", title=title, xlim=(SIGMA[0], SIGMA[-1]))
    axes.set_ylim(bottom=0)
    axes.set_ylabel("per unit of $\\ln\\sigma$")


def shades(count: int) -> list[tuple[float, ...]]:
    return [plt.get_cmap("viridis")(0.85 - 0.75 * i / max(1, count - 1)) for i in range(count)]


def static(left: Axes, right: Axes, name: str, **chosen: object) -> None:
    """A static density beside the defaults of EDM and flow."""
    for axes, base in ((left, "flow"), (right, "edm")):
        curve(axes, BASES[base], color=GREY, linestyle="--", label=f"{base}'s own")
        curve(axes, build(name, BASES[base], **chosen), color=shades(2)[1], label=name)
        sigma_axis(axes, f"beside {base}'s own")


def tilt(left: Axes, right: Axes, name: str) -> None:
    """A tilt of VP's and of EDM's density."""
    for axes, base in ((left, "vp"), (right, "edm")):
        curve(axes, BASES[base], color=GREY, linestyle="--", label=f"{base}'s own")
        curve(axes, build(name, BASES[base]), color=shades(2)[1], label=name)
        sigma_axis(axes, f"on {base}")


def curriculum(left: Axes, right: Axes, name: str, times: tuple[float, ...], bases: tuple[str, str]) -> None:
    for axes, base in ((left, bases[0]), (right, bases[1])):
        curve(axes, BASES[base], color=GREY, linestyle="--", label=f"{base}'s own")
        for progress, color in zip(times, shades(len(times)), strict=True):
            curve(axes, build(name, BASES[base]), progress, color=color, label=f"progress {progress:g}")
        sigma_axis(axes, f"on {base}")


def task_difficulty(left: Axes, right: Axes) -> None:
    for axes, base in ((left, "vp"), (right, "edm")):
        density, stages = TaskDifficulty(BASES[base], patience=1), (1, 5, 10, 20)
        for stage, color in zip(stages, shades(len(stages)), strict=True):
            while density.stage < stage:
                density.observe(torch.ones(1), torch.ones(1), torch.ones(1))
                density.reduce()
            curve(axes, density, color=color, label=f"stage {stage}", drawstyle="steps-mid")
        sigma_axis(axes, f"on {base}, 20 clusters")


def adaptive(left: Axes, right: Axes) -> None:
    """What it learns from the exact error on Gaussian data of standard deviation 0.5."""
    for axes, name in ((left, "flow"), (right, "edm")):
        framework = headway.framework(name)
        density = EntropyRate(framework.density, loss_weight=framework.weight)
        curve(axes, framework.density, color=GREY, linestyle="--", label=f"{name}'s own")
        seen = (2_000, 50_000)
        for images, color in zip(seen, shades(2), strict=True):
            density.load_state_dict({"average": torch.zeros(density.bins, 2)})
            for _ in range(images // 500):
                sigma = framework.density.icdf((torch.arange(500, dtype=torch.float64) + 0.5) / 500)
                density.observe(sigma, sigma, 0.25 * sigma**2 / (0.25 + sigma**2))
                density.reduce()
            curve(axes, density, color=color, label=f"after {images:,} images")
        sigma_axis(axes, f"on {name}, Gaussian data")


def strata(left: Axes, right: Axes) -> None:
    uniforms = torch.rand(64, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for axes, q, title in ((left, uniforms[:, 1], "plain"), (right, stratified(uniforms), "stratified")):
        axes.hist(q, bins=64, range=(0, 1), color=shades(2)[1], label="draws in each 64th")
        axes.set(title=f"64 {title} quantiles", xlabel="q", ylim=(0, 6))


def coupling(left: Axes, right: Axes) -> None:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(24, 2, generator=generator) * 0.3 + torch.tensor([1.0, 0.0])
    noise = torch.randn(24, 2, generator=generator)
    for axes, order, title in (
        (left, torch.arange(24), "independent"),
        (right, immiscible(images, noise), "immiscible"),
    ):
        for x, eps in zip(images, noise[order], strict=True):
            axes.plot(*zip(x, eps, strict=True), color=GREY, linewidth=0.7)
        axes.plot(*images.T, "o", markersize=4, color=shades(2)[1], label="images")
        axes.plot(*noise.T, "o", markersize=4, color=shades(2)[0], label="noise")
        distance = float((images - noise[order]).square().sum(1).mean())
        axes.set(title=f"{title}: mean squared distance {distance:.2f}")


PLOTS = {
    "clts": lambda a, b: curriculum(a, b, "clts", (0.0, 0.35, 0.7), ("vp", "edm")),
    "logit-normal": lambda a, b: static(a, b, "logit-normal", mean=0.8),
    "mode": lambda a, b: static(a, b, "mode"),
    "cosmap": lambda a, b: static(a, b, "cosmap"),
    "laplace": lambda a, b: static(a, b, "laplace"),
    "beta": lambda a, b: tilt(a, b, "beta"),
    "speed": lambda a, b: tilt(a, b, "speed"),
    "two-phase": lambda a, b: curriculum(a, b, "two-phase", (0.0, 1.0), ("flow", "edm")),
    "task-difficulty": task_difficulty,
    "adaptive": adaptive,
    "stratified": strata,
    "immiscible": coupling,
}


def main(folder: Path) -> None:
    plt.rcParams.update({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False})
    for name, plot in PLOTS.items():
        figure, (left, right) = plt.subplots(1, 2, figsize=(7, 2.4), layout="constrained")
        plot(left, right)
        left.legend()
        figure.savefig(folder / f"{name}.png", dpi=80, pil_kwargs={"optimize": True})
        plt.close(figure)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
