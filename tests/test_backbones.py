"""Networks: their size against EDM's, their conditions, sizes of images, seeds, and what trainers need of them."""

import copy
import math

import pytest
import torch
from diffusers import UNet2DModel
from diffusers.models.downsampling import downsample_2d
from diffusers.models.embeddings import Timesteps
from diffusers.models.upsampling import upsample_2d
from torch import nn

from headway.backbones import build, flops
from headway.backbones.parts import on_canvas
from headway.backbones.residual import Fir
from headway.errors import HeadwayError

SMALL = {"model_channels": 8, "channel_mult": (1, 2), "blocks": 1, "attention": (4,)}
NETWORKS = {
    "plain": ("base", SMALL),
    "patched": ("small", {"model_channels": 8}),
    "tiny": ("tiny", {"model_channels": 8}),
    "ddpmpp": ("ddpmpp", SMALL),
    "ncsnpp": ("ncsnpp", SMALL),
    "dit": ("dit-tiny", {"width": 16, "depth": 2, "heads": 2}),
}
every_network = pytest.mark.parametrize("kind", NETWORKS)


def make(kind: str, *, channels: int = 2, size: tuple[int, int] = (8, 8), **settings) -> nn.Module:
    """A small network of a kind, its weights moved off their start, where residual branches are all but silent."""
    preset, overrides = NETWORKS[kind]
    network = build(preset, channels=channels, size=size, **overrides, **settings).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return network


def images(n: int = 2, channels: int = 2, size: tuple[int, int] = (8, 8)) -> torch.Tensor:
    return torch.randn(n, channels, *size, generator=torch.Generator().manual_seed(2))


def parameters(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters() if p.requires_grad)


def song_unet(mult: tuple[int, ...], resolution: int, *, residual: bool, classes: int = 0, augment_dim: int = 0) -> int:
    """Parameters of EDM's SongUNet, layer by layer (128 channels, 4 blocks, attention at 16, RGB)."""
    base, blocks, width = 128, 4, 512

    def conv(fan_in: int, fan_out: int, side: int) -> int:
        return fan_in * fan_out * side**2 + fan_out

    def block(fan_in: int, fan_out: int, attention: bool = False, resample: bool = False) -> int:
        total = 2 * fan_in + conv(fan_in, fan_out, 3)  # norm0, conv0
        total += width * fan_out + fan_out  # the embedding is added, not scaled and shifted with
        total += 2 * fan_out + conv(fan_out, fan_out, 3)  # norm1, conv1
        total += conv(fan_in, fan_out, 1) if fan_in != fan_out or resample else 0
        total += 2 * fan_out + conv(fan_out, 3 * fan_out, 1) + conv(fan_out, fan_out, 1) if attention else 0
        return total

    noise = base * (2 if residual else 1)
    total = noise * width + width + width * width + width
    total += (classes * noise + noise if classes else 0) + augment_dim * noise
    channels, skips, auxiliary = 3, [], 3
    for level, m in enumerate(mult):
        attention = resolution >> level == 16
        if level == 0:
            total += conv(3, base, 3)
            channels = base
        else:
            total += block(channels, channels, resample=True)
            if residual:
                total += conv(auxiliary, channels, 3)
                auxiliary = channels
        skips.append(channels)
        for _ in range(blocks):
            total += block(channels, base * m, attention)
            channels = base * m
            skips.append(channels)
    for level, m in reversed(list(enumerate(mult))):
        if level == len(mult) - 1:
            total += block(channels, channels, attention=True) + block(channels, channels)
        else:
            total += block(channels, channels, resample=True)
        for index in range(blocks + 1):
            total += block(channels + skips.pop(), base * m, index == blocks and resolution >> level == 16)
            channels = base * m
    return total + 2 * channels + conv(channels, 3, 3)


def test_the_reconstruction_of_edm_gives_the_published_sizes():
    assert f"{song_unet((2, 2, 2), 32, residual=False) / 1e6:.1f}" == "55.7"
    assert f"{song_unet((1, 2, 2, 2), 64, residual=False) / 1e6:.1f}" == "61.8"


@pytest.mark.parametrize(
    ("preset", "mult", "side"),
    [
        ("ddpmpp", (2, 2, 2), 32),
        ("ddpmpp-64", (1, 2, 2, 2), 64),
        ("ncsnpp", (2, 2, 2), 32),
        ("ncsnpp-64", (1, 2, 2, 2), 64),
    ],
)
@pytest.mark.parametrize("conditions", [{}, {"classes": 10, "augment_dim": 9}])
def test_sizes_are_within_one_percent_of_edm(preset, mult, side, conditions):
    with torch.device("meta"):
        network = build(preset, channels=3, size=(side, side), **conditions)
    edm = song_unet(mult, side, residual=preset.startswith("ncsnpp"), **conditions)
    assert parameters(network) == pytest.approx(edm, rel=0.01)


@pytest.mark.parametrize(
    ("preset", "channels", "side", "low", "high"),
    [
        ("tiny", 1, 8, 0.2e6, 0.4e6),
        ("small", 1, 28, 0.6e6, 1.5e6),
        ("base", 3, 32, 10e6, 20e6),
        ("large", 3, 128, 100e6, 300e6),
        ("dit-tiny", 3, 32, 1e6, 2e6),
        ("dit-s", 3, 32, 30e6, 35e6),
        ("dit-b", 3, 32, 125e6, 135e6),
    ],
)
def test_sizes_of_the_other_presets(preset, channels, side, low, high):
    with torch.device("meta"):
        network = build(preset, channels=channels, size=(side, side))
    assert low < parameters(network) < high


def test_ddpmpp_attends_where_edm_does():
    with torch.device("meta"):
        unet = build("ddpmpp", channels=3, size=(32, 32)).unet
    attentions = [name for name, module in unet.named_modules() if type(module).__name__ == "Attention"]
    assert attentions == [
        *(f"down_blocks.1.attentions.{i}" for i in range(4)),
        "up_blocks.1.attentions.4",
        "mid_block.attentions.0",
    ]


def test_residual_sums_keep_their_variance_in_ddpmpp():
    network = build("ddpmpp", channels=2, size=(8, 8), **SMALL)
    h, embedding = images(2, 8), torch.zeros(2, 32)
    assert torch.allclose(network.unet.down_blocks[0].resnets[0](h, embedding), h / 2**0.5, atol=1e-4)
    attention = network.unet.mid_block.attentions[0]
    h = images(2, 16, (4, 4))
    assert torch.allclose(attention(h), h / 2**0.5, atol=1e-4)


def test_ncsnpp_averages_each_coarser_level_with_the_filtered_input():
    settings = {
        "channels": 2,
        "size": (8, 8),
        "attention": (),
        "model_channels": 8,
        "channel_mult": (1, 2, 2),
        "blocks": 1,
    }
    unet = build("ncsnpp", **settings).unet
    h, skip, embedding = images(2, 8), images(2, 2), torch.zeros(2, 32)
    level = unet.down_blocks[0]
    own, _ = level.block(h, embedding)
    out, states, copied = level(h, embedding, skip)
    filtered = downsample_2d(level.skip_conv(skip), kernel=(1, 3, 3, 1))
    assert torch.allclose(out, (own + filtered) / 2**0.5, atol=1e-6)
    assert states[-1] is out
    assert copied is out  # what the next level filters
    assert unet.down_blocks[1].skip_conv.in_channels == out.shape[1]


@every_network
@pytest.mark.parametrize("size", [(8, 8), (7, 9), (5, 12), (33, 31)])
def test_any_size_of_image_comes_back(kind, size):
    attention = {"attention": ()} if "attention" in NETWORKS[kind][1] else {}
    preset, overrides = NETWORKS[kind]
    network = build(preset, channels=1, size=size, **{**overrides, **attention})
    assert network(images(2, 1, size), torch.zeros(2)).shape == (2, 1, *size)


@pytest.mark.parametrize("size", [(1, 1), (5, 8), (7, 7), (8, 8)])
def test_the_canvas_is_undone_exactly(size):
    x = images(size=size)
    padded = on_canvas(x, 8, 8)
    assert padded.shape[-2:] == (8, 8)
    assert padded.sum() == pytest.approx(x.sum().item(), abs=1e-5)
    assert torch.equal(on_canvas(padded, *size), x)


@every_network
def test_the_network_uses_the_image_and_the_noise_level(kind):
    network, x = make(kind), images()
    base = network(x, torch.tensor([0.1, 0.1]))
    assert not torch.allclose(base, network(x.flip(-1), torch.tensor([0.1, 0.1])), atol=1e-4)
    other = network(x, torch.tensor([0.1, 0.3]))
    assert torch.allclose(base[0], other[0], atol=1e-5)
    assert not torch.allclose(base[1], other[1], atol=1e-4)


@every_network
def test_any_range_of_c_noise_is_finite_and_fractions_count(kind):
    network, x = make(kind), images(3)
    out = network(x[:1].expand(3, -1, -1, -1), torch.tensor([-1.55, 500.0, 500.25]))
    assert out.isfinite().all()
    assert not torch.allclose(out[1], out[2], atol=1e-4)


def test_positional_features_tell_edms_sampling_levels_apart():
    # EDM's c_noise = ln(sigma)/4 spans [-1.55, 1.1] only; its 18-step grid must still land on distinct features.
    sigma = (0.002 ** (1 / 7) + torch.linspace(1, 0, 18) * (80 ** (1 / 7) - 0.002 ** (1 / 7))) ** 7
    features = Timesteps(128, True, 1)(sigma.log() / 4)
    steps = (features[1:] - features[:-1]).norm(dim=1)
    assert steps.min() > 0.1
    assert torch.cdist(features, features).topk(2, largest=False).values[:, 1].min() > 0.1


@every_network
def test_minus_one_is_no_label(kind):
    network, x, c = make(kind, classes=5), images(), torch.zeros(2)
    none = network(x, c)
    assert torch.equal(none, network(x, c, torch.tensor([-1, -1])))
    mixed = network(x, c, torch.tensor([-1, 3]))
    assert torch.allclose(mixed[0], none[0], atol=1e-5)
    assert not torch.allclose(mixed[1], none[1], atol=1e-3)
    assert not torch.allclose(mixed[1], network(x, c, torch.tensor([-1, 4]))[1], atol=1e-3)


@every_network
def test_no_augmentation_is_the_zero_vector(kind):
    network, x, c = make(kind, augment_dim=9), images(), torch.zeros(2)
    none = network(x, c)
    assert torch.equal(none, network(x, c, augment=torch.zeros(2, 9)))
    assert not torch.allclose(none, network(x, c, augment=torch.ones(2, 9)), atol=1e-3)


@every_network
def test_conditions_the_network_was_not_built_for_are_refused(kind):
    network, x, c = make(kind), images(), torch.zeros(2)
    with pytest.raises(HeadwayError, match="classes=0"):
        network(x, c, torch.tensor([0, 1]))
    with pytest.raises(HeadwayError, match="augment_dim=0"):
        network(x, c, augment=torch.zeros(2, 9))


@every_network
def test_every_parameter_has_a_gradient_even_without_conditions(kind):
    network = make(kind, classes=5, augment_dim=9)
    network(images(), torch.zeros(2)).square().sum().backward()
    assert [n for n, p in network.named_parameters() if p.requires_grad and p.grad is None] == []
    silent = {n for n, p in network.named_parameters() if p.requires_grad and not p.grad.any()}
    assert silent == {"condition.label.weight", "condition.augment.weight"}


@every_network
def test_weights_follow_the_seed_and_leave_the_global_state_alone(kind):
    preset, overrides = NETWORKS[kind]

    def weights(seed: int) -> torch.Tensor:
        network = build(preset, channels=2, size=(8, 8), classes=3, augment_dim=9, seed=seed, **overrides)
        return nn.utils.parameters_to_vector(network.parameters())

    before = torch.get_rng_state()
    first = weights(0)
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(7)
    assert torch.equal(first, weights(0))
    assert not torch.equal(first, weights(1))


@every_network
def test_the_start_is_nearly_zero(kind):
    preset, overrides = NETWORKS[kind]
    network = build(preset, channels=2, size=(8, 8), **overrides)
    assert network(images(), torch.zeros(2)).abs().max() < 1e-3


@every_network
def test_copies_and_saved_weights_are_the_same_network(kind):
    network, x, c = make(kind, classes=3), images(), torch.zeros(2)
    out = network(x, c)
    assert torch.equal(out, copy.deepcopy(network)(x, c))
    fresh = build(NETWORKS[kind][0], channels=2, size=(8, 8), classes=3, seed=9, **NETWORKS[kind][1]).eval()
    fresh.load_state_dict(network.state_dict())
    assert torch.equal(out, fresh(x, c))


@every_network
def test_dropout_is_active_in_training_only(kind):
    network, x, c = make(kind, dropout=0.5), images(), torch.zeros(2)
    assert torch.equal(network(x, c), network(x, c))
    network.train()
    assert not torch.allclose(network(x, c), network(x, c), atol=1e-4)


@pytest.mark.parametrize("kind", ["tiny", "ncsnpp", "dit"])
def test_compiles_as_one_graph(kind):
    torch.compiler.reset()
    network, x, c, labels = make(kind, classes=3), images(), torch.zeros(2), torch.tensor([-1, 2])
    compiled = torch.compile(network, backend="eager", fullgraph=True)
    assert torch.allclose(compiled(x, c, labels), network(x, c, labels), atol=1e-5)


@every_network
def test_autocast_is_close_to_full_precision(kind):
    network, x, c = make(kind, classes=3), images(), torch.tensor([-1.5, 999.0])
    full = network(x, c)
    with torch.autocast("cpu", torch.bfloat16):
        half = network(x, c).float()
    assert (half - full).norm() < 0.05 * full.norm()


def test_a_plain_network_holds_a_stock_diffusers_unet():
    network, x, c = make("plain"), images(), torch.ones(2)
    stock = UNet2DModel.from_config(network.unet.config).eval()
    stock.load_state_dict(network.unet.state_dict())
    assert torch.equal(stock(x, c).sample, network(x, c))


def test_fir_resampling_is_diffusers():
    x = images(2, 3, (8, 12))
    assert torch.allclose(Fir("down")(x), downsample_2d(x, kernel=(1, 3, 3, 1)), atol=1e-6)
    assert torch.allclose(Fir("up")(x), upsample_2d(x, kernel=(1, 3, 3, 1)), atol=1e-6)


def test_flops_of_one_convolution():
    class Convolution(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 5, 3, padding=1)

        def forward(self, x, c_noise):
            return self.conv(x)

    assert flops(Convolution(), 3, (8, 10)) == 2 * 3 * 5 * 9 * 8 * 10


@pytest.mark.parametrize("law", ["xavier", "orthogonal", "torch"])
def test_first_weights_follow_their_law(law):
    network = build("tiny", channels=1, size=(8, 8), init=law).unet
    w = network.conv_in.weight.flatten(1)
    if law == "orthogonal":
        assert torch.allclose(w @ w.T if w.shape[0] <= w.shape[1] else w.T @ w, torch.eye(min(w.shape)), atol=1e-5)
    else:
        fan_in, fan_out = 4 * 9, 48 * 9
        bound = math.sqrt(6 / (fan_in + fan_out)) if law == "xavier" else 1 / math.sqrt(fan_in)
        assert 0.95 * bound < w.abs().max() <= bound
    silent = network.conv_out.weight.abs().max() < 1e-4 and not network.conv_out.bias.any()
    assert silent == (law != "torch")


def test_flops_count_attention_wherever_the_network_is():
    settings = {"channels": 1, "size": (28, 28)}
    with_attention = flops(build("small", **settings), **settings)
    without = flops(build("small", middle_attention=False, **settings), **settings)
    tokens, width = 7 * 7, 64
    assert with_attention - without == 2 * (4 * tokens * width**2 + 2 * tokens**2 * width)
    with torch.device("meta"):
        assert flops(build("small", **settings), **settings) == with_attention


@pytest.mark.parametrize(
    ("preset", "settings", "words"),
    [
        ("ddpm++", {}, "'ddpmpp'"),
        ("ddpmpp", {"chanel_mult": (1, 2)}, "'channel_mult'"),
        ("dit-s", {"model_channels": 8}, "width"),
        ("ddpmpp", {"embedding": "forier"}, "'fourier'"),
        ("tiny", {"init": "xaver"}, "'xavier'"),
        ("ddpmpp", {"channel_mult": "wide"}, "tuple"),
        ("ddpmpp", {"channel_mult": ()}, "at least 1"),
        ("tiny", {"blocks": 0}, "greater"),
        ("tiny", {"patch": 0}, "greater"),
        ("tiny", {"model_channels": 6}, "multiple of 4"),
        ("base", {"head_channels": 7}, "head_channels"),
        ("ddpmpp", {"attention": (64,)}, "no level"),
        ("dit-s", {"heads": 7}, "heads"),
        ("tiny", {"dropout": 1.0}, "dropout"),
        ("tiny", {"channels": 0}, "channels"),
    ],
)
def test_errors_say_what_to_give(preset, settings, words):
    with pytest.raises(HeadwayError) as error:
        build(preset, **{"channels": 3, "size": (32, 32), **settings})
    assert words in str(error.value)


def test_lists_from_a_recipe_are_tuples():
    network = build("ddpmpp", channels=3, size=(32, 32), model_channels=8, channel_mult=[1, 2], attention=[16])
    assert network.unet.config.block_out_channels == (8, 16)
