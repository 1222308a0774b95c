"""Headway's pieces in other people's trainers: torchcfm's time, k-diffusion's weights, and the examples made of them.

Both packages import much that these pieces never touch (torchcfm: POT; k-diffusion: clip, torchvision, a DCT that wants numpy < 2),
so they are tested as `pip install --no-deps` leaves them, with empty stand-ins for the rest while they are imported.
"""

from __future__ import annotations

import runpy
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch

import headway
from headway.noise import CurriculumTimesteps
from headway.weighting import convert, soft_min_snr

EXAMPLES = Path(__file__).parents[1] / "examples"
UNUSED = {
    "torchcfm": ["ot"],
    "k_diffusion": [
        *("clip", "cleanfid", "cleanfid.inception_torchscript", "dctorch", "einops", "jsonmerge"),
        *("skimage", "torchdiffeq", "torchsde", "torchvision", "torchvision.transforms"),
    ],
}


@pytest.fixture
def installed():
    """A function that imports a package by name, or skips."""

    def load(name):
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed (pip install --no-deps {name.replace('_', '-')})")
        with pytest.MonkeyPatch.context() as patch:
            for module in UNUSED[name]:
                patch.setitem(sys.modules, module, MagicMock())
            return import_module(name)

    yield load
    for name in [name for name in sys.modules if name.split(".")[0] in UNUSED]:
        del sys.modules[name]


@pytest.mark.parametrize("sigma", [0.0, 0.1])
def test_torchcfms_time_runs_against_ours(installed, sigma):
    matcher = installed("torchcfm").ConditionalFlowMatcher(sigma=sigma)
    generator = torch.Generator().manual_seed(0)
    data, noise = torch.randn(2, 512, 1, 4, 4, generator=generator)
    ours = CurriculumTimesteps(continuous=True).sample(512, progress=1.0, generator=generator)
    theirs, xt, ut, extra = matcher.sample_location_and_conditional_flow(noise, data, 1 - ours, return_noise=True)
    t = ours.view(-1, 1, 1, 1)
    torch.testing.assert_close(theirs, 1 - ours, rtol=0, atol=0)
    torch.testing.assert_close(xt, (1 - t) * data + t * noise + sigma * extra)
    torch.testing.assert_close(ut, data - noise)
    # The curriculum's aim, fewer draws near pure noise, is kept: there torchcfm's t is near 0.
    assert (theirs < 0.5).float().mean() < 0.45


@pytest.mark.parametrize("sigma_data", [0.5, 1.0, 0.3])
@pytest.mark.parametrize("weighting", ["karras", "soft-min-snr", "snr"])
def test_k_diffusions_weights_are_ours_on_the_networks_output(installed, weighting, sigma_data):
    denoiser = installed("k_diffusion").Denoiser(torch.nn.Identity(), sigma_data, weighting)
    sigma = torch.logspace(-3, 3, 200, dtype=torch.float64)
    snr = sigma**-2
    edm = headway.framework("edm", sigma_data=sigma_data)
    ours = {
        "karras": lambda: convert(lambda r: edm.weight(r.rsqrt()), snr, "edm", sigma_data=sigma_data),
        "soft-min-snr": lambda: soft_min_snr(snr, gamma=sigma_data**-2, prediction="edm", sigma_data=sigma_data),
        "snr": lambda: convert(lambda r: r, snr, "edm", sigma_data=sigma_data),
    }[weighting]()
    torch.testing.assert_close(ours, denoiser.weighting(sigma), rtol=1e-6, atol=0)


@pytest.mark.parametrize("weight", [headway.min_snr, soft_min_snr], ids=["min-snr", "soft-min-snr"])
def test_a_weight_times_k_diffusions_loss_is_that_weight_on_x0(installed, weight):
    class Inner(torch.nn.Module):
        def forward(self, x, sigma):
            return 0.3 * x.sin() + sigma.log().view(-1, 1, 1, 1)

    denoiser = installed("k_diffusion").Denoiser(Inner(), sigma_data=0.5, weighting="karras")
    x0, eps = torch.randn(2, 64, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    sigma = torch.logspace(-2, 2, 64, dtype=torch.float64)
    loss = weight(sigma**-2, prediction="edm", sigma_data=0.5) * denoiser.loss(x0, eps, sigma)
    error = (denoiser(x0 + sigma.view(-1, 1, 1, 1) * eps, sigma) - x0).square().flatten(1).mean(1)
    torch.testing.assert_close(loss, weight(sigma**-2, prediction="x0") * error, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("example", "package"), [("torchcfm_loop", "torchcfm"), ("k_diffusion_denoiser", "k_diffusion")]
)
def test_example_runs(example, package, installed, tmp_path, monkeypatch, capsys):
    installed(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWAY_EXAMPLE_STEPS", "4")
    final = runpy.run_path(str(EXAMPLES / f"{example}.py"), run_name="__main__")
    assert "samples' mean" in capsys.readouterr().out
    assert final["momentum"].steps == 4
    assert final["x"].isfinite().all()
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore::FutureWarning:lightning.*")
def test_lightning_example_runs(tmp_path, monkeypatch):
    pytest.importorskip("lightning")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWAY_EXAMPLE_STEPS", "4")
    final = runpy.run_path(str(EXAMPLES / "lightning_callback.py"), run_name="__main__")
    assert final["group"]["betas"][0] == 0
    assert final["group"]["lr"] == pytest.approx(1e-4)
    assert not list(tmp_path.iterdir())
