import copy

import pytest
import torch

from mmpos import RoPE, create_encoding, list_encodings, load_encodings, register_encoding
from mmpos.factory import build
from mmpos.presets import PRESETS
from mmpos.presets.additive import ADDITIVE
from mmpos.presets.rotary import ROTARY
from mmpos.scaling import PositionInterpolation, YaRN
from mmpos.spectra import Axial, Sections

NAMES = (
    "llama2", "llama3_1", "qwen2_vl", "qwen3_vl", "gpt_neox", "gpt_oss", "phi3_long", "deepseek_v3", "eva02", "dinov3",
    "rope_vit_axial", "rope_vit_mixed", "pixtral", "flux", "flux2", "qwen_image", "hunyuan_video", "wan", "cogvideox",
    "ltx_video", "poyo",
)  # fmt: skip


def coords_for(rope):
    return torch.randint(0, 50, (7, rope.axes))


def same(rope, other):
    coords = coords_for(rope)
    return all(map(torch.equal, rope(coords)[:2], other(coords)[:2]))


def test_names_of_presets_stand_beside_those_of_classes():
    assert set(NAMES) == set(ROTARY)
    assert set(NAMES) | {"RoPE"} <= set(list_encodings("rotary"))
    assert set(ADDITIVE) | {"Sinusoidal"} <= set(list_encodings("additive"))
    assert len(list_encodings()) == len(set(list_encodings()))


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_builds_as_it_stands_and_leaves_the_table_alone(name):
    before = copy.deepcopy(PRESETS[name])
    rope = create_encoding(name)
    assert isinstance(rope, RoPE)
    x = torch.randn(2, 32 if name == "ltx_video" else 12, 7, rope.head_dim)
    assert rope(coords_for(rope)).apply(x).shape == x.shape
    create_encoding(name, base=7.0, layout="half", scaling=None)
    assert PRESETS[name] == before


@pytest.mark.parametrize("name", ADDITIVE)
def test_an_additive_preset_builds_as_it_stands_and_at_another_width(name):
    before = copy.deepcopy(PRESETS[name])
    arguments = {} if "dim" in before.arguments or name in ("nerf", "perceiver") else {"dim": 12}
    encoding = create_encoding(name, **arguments)
    coords = torch.rand(7, encoding.axes)
    assert encoding(coords).shape == (7, encoding.dim)
    assert create_encoding(name, dim=60)(coords).shape == (7, 60)
    assert PRESETS[name] == before


@pytest.mark.parametrize(
    "name", [name for name in NAMES if name not in ("phi3_long", "ltx_video", "qwen2_vl", "qwen3_vl")]
)
def test_a_preset_scales_to_another_head(name):
    rope = create_encoding(name, head_dim=256)
    assert rope.head_dim == 256
    assert rope(coords_for(rope)).apply(torch.randn(12, 7, 256)).shape == (12, 7, 256)


@pytest.mark.parametrize("name, pairs", [("flux", (4, 14, 14)), ("cogvideox", (8, 12, 12)), ("wan", (12, 10, 10))])
def test_a_budget_of_another_head_has_the_published_shares(name, pairs):
    got = create_encoding(name, head_dim=64)
    want = RoPE(64, axes=3, spectrum=Axial(channels=[2 * count for count in pairs]), layout="interleaved")
    assert same(got, want)


def test_any_argument_can_be_overridden():
    assert same(create_encoding("llama2", base=500), RoPE(128, base=500))
    assert same(create_encoding("llama3_1", scaling=None), RoPE(128, base=500000.0))
    spec = {"name": "YaRN", "factor": 4, "train_length": 4096}
    assert create_encoding("llama2", scaling=spec).scaling == YaRN(4, 4096)
    small = create_encoding("qwen2_vl", head_dim=16, spectrum={"name": "Sections", "sections": [2, 3, 3]})
    assert same(small, RoPE(16, axes=3, base=1e6, spectrum=Sections((2, 3, 3))))
    assert create_encoding("rope_vit_mixed", num_heads=6, num_kv_heads=3).freqs.shape == (3, 2, 32)
    assert create_encoding("dinov3", layout="interleaved").layout == "interleaved"


def test_what_cannot_be_overridden_alone_says_why():
    with pytest.raises(ValueError, match=r"sections \(16, 24, 24\) must add up to half of head_dim \(64\)"):
        create_encoding("qwen2_vl", head_dim=64)
    with pytest.raises(ValueError, match="48 factors for the 32 pairs"):
        create_encoding("phi3_long", head_dim=64)
    with pytest.raises(TypeError, match="llama2 has no argument 'bases'; did you mean 'base'"):
        create_encoding("llama2", bases=500)


def test_in_a_slot_the_sizes_of_the_model_go_before_those_of_the_preset_and_the_spec_before_both():
    assert build({"name": "llama2"}, kind="rotary", dim=384, num_heads=6).head_dim == 64
    assert build({"name": "llama2", "head_dim": 32}, kind="rotary", dim=384, num_heads=6).head_dim == 32
    assert build({"name": "llama2"}, kind="rotary").head_dim == 128
    mixed = build({"name": "rope_vit_mixed"}, kind="rotary", dim=384, num_heads=6, num_kv_heads=2)
    assert mixed.freqs.shape == (2, 2, 32)


def test_a_preset_in_yaml(tmp_path):
    path = tmp_path / "positions.yaml"
    scaling = "{name: PositionInterpolation, factor: 2}"
    path.write_text(f"image:\n  rotary: {{name: rope_vit_axial, scaling: [{scaling}, null]}}\n")
    rope = load_encodings(path, dim=384, num_heads=6)["image"].rotary
    assert rope.scaling == [PositionInterpolation(2), None]
    assert same(rope, create_encoding("rope_vit_axial", head_dim=64, scaling=[PositionInterpolation(2), None]))


@pytest.mark.parametrize(
    "wrong, right", [("flx", "flux"), ("llama3.1", "llama3_1"), ("Rope", "RoPE"), ("DINOv3", "dinov3")]
)
def test_an_unknown_name_suggests_the_closest_over_presets_and_classes(wrong, right):
    with pytest.raises(ValueError, match=f"unknown encoding '{wrong}'; did you mean '{right}'.*ALiBi.*flux2"):
        create_encoding(wrong)


def test_names_of_presets_are_taken_and_for_their_slot_only():
    with pytest.raises(ValueError, match="the encoding name 'flux' is taken"):
        register_encoding("flux", RoPE)
    with pytest.raises(ValueError, match="flux is for the rotary slot, not for bias"):
        build({"name": "flux"}, kind="bias")


DAYS = torch.arange(19000, 19700, 7)[:, None]


def test_days_of_satellite_images():
    """Garnot's code: ``sin(day / 1000 ** (2 (i // 2) / 16))`` for even ``i``, the cosine for odd ones."""
    angles = DAYS.double() / 1000 ** (2 * (torch.arange(16) // 2).double() / 16)
    want = torch.where(torch.arange(16) % 2 == 0, angles.sin(), angles.cos())
    torch.testing.assert_close(create_encoding("utae")(DAYS).double(), want, rtol=0, atol=1e-7)


def test_seasons_of_prophet():
    columns = []
    for period, order in ((365.25, 10), (7, 3)):
        for i in range(order):
            angle = 2 * torch.pi * (i + 1) * DAYS[:, 0].double() / period
            columns += [angle.sin(), angle.cos()]
    want = torch.stack(columns, dim=-1)
    torch.testing.assert_close(create_encoding("prophet")(DAYS).double(), want, rtol=0, atol=1e-7)


def test_time_since_an_event():
    """TGAT's frequencies, ``1 / 10 ** linspace(0, 9, 100)``; GraphMixer keeps them."""
    freqs = 1 / 10 ** torch.linspace(0, 9, 100, dtype=torch.float64)
    since = torch.tensor([[0], [1], [12345], [10_000_000]])
    mixer = create_encoding("graphmixer")(since)
    torch.testing.assert_close(mixer[:, :100].double(), (since * freqs).cos(), rtol=0, atol=1e-7)
    torch.testing.assert_close(mixer[:, 100:].double(), (since * freqs).sin(), rtol=0, atol=1e-7)
    tgat = create_encoding("tgat")
    torch.testing.assert_close(tgat.freqs[1:].double(), freqs, rtol=1e-7, atol=0)
    torch.nn.init.zeros_(tgat.phases)
    learned = (since * tgat.freqs[1:].double()).cos()
    torch.testing.assert_close(tgat(since)[:, 1:].double(), learned, rtol=0, atol=1e-7)


def test_seconds_of_spikes():
    rotation = create_encoding("poyo")(torch.tensor([[0.25], [1e-4], [2.0627]], dtype=torch.float64))
    periods = 1e-4 * (2.0627 / 1e-4) ** (torch.arange(16, dtype=torch.float64) / 15)
    want = 2 * torch.pi * torch.tensor([[0.25], [1e-4], [2.0627]], dtype=torch.float64) / periods
    assert rotation.layout == "interleaved"
    torch.testing.assert_close(rotation.cos[0].double(), want.cos(), rtol=0, atol=1e-7)
    torch.testing.assert_close(rotation.sin[0].double(), want.sin(), rtol=0, atol=1e-7)
