import math

import pytest
import torch

pytest.importorskip("rotary_embedding_torch")
pytest.importorskip("timm")
pytest.importorskip("transformers")

from rotary_embedding_torch import RotaryEmbedding, apply_rotary_emb
from timm.layers import apply_rot_embed_cat, create_rope_embed
from transformers import DINOv3ViTConfig, LlamaConfig, Qwen2VLTextConfig, Qwen3VLTextConfig
from transformers.models.dinov3_vit.modeling_dinov3_vit import DINOv3ViTRopePositionEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLRotaryEmbedding
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding
from transformers.models.vjepa2.modeling_vjepa2 import rotate_queries_or_keys

from mmpos import RoPE, grid_coords, normalise, sequence_coords
from mmpos.encodings.rotary import XPos
from mmpos.frequencies import Bands, Periods
from mmpos.scaling import Proportional
from mmpos.spectra import Axial, Mixed, Sections
from tests.rotary_checks import angles_of, blocks, check_spectrum, check_turns, geometric, half_width, turned

LAYOUTS = ["half", "interleaved"]
HEIGHT, WIDTH = 13, 21


# timm


def timm_tables(embed, layout):
    sin, cos = embed.chunk(2, -1)
    return half_width(cos, layout), half_width(sin, layout)


def check_timm(rope, coords, freqs, module, shape=(HEIGHT, WIDTH)):
    embed = module.get_embed(shape).detach()
    half = rope.layout == "half"
    check_turns(
        rope,
        coords,
        angles_of(coords, freqs),
        shipped=lambda x: apply_rot_embed_cat(x, embed, half=half),
        tables=timm_tables(embed, rope.layout),
    )
    check_spectrum(rope, freqs)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("indexing", ["ij", "xy"])
@pytest.mark.parametrize("offset, ref", [(0.0, None), (1.0, None), (0.0, (16, 16))])
def test_timm_axial(layout, indexing, offset, ref):
    module = create_rope_embed(
        "cat",
        64,
        4,
        temperature=100.0,
        in_pixels=False,
        grid_indexing=indexing,
        grid_offset=offset,
        ref_feat_shape=ref,
        rotate_half=layout == "half",
    )
    order = (0, 1) if indexing == "ij" else (1, 0)
    spacing = (1, 1) if ref is None else (16 / HEIGHT, 16 / WIDTH)
    coords = grid_coords(HEIGHT, WIDTH, spacing, origin=offset)
    freqs = blocks(geometric(100, 8), geometric(100, 8))[list(order)]
    rope = RoPE(16, axes=2, base=100.0, layout=layout, spectrum=Axial(order=order))
    check_timm(rope, coords, freqs, module)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("linear", [True, False])
def test_timm_pixel_bands(layout, linear):
    module = create_rope_embed("cat", 96, 4, max_res=224, linear_bands=linear, rotate_half=layout == "half")
    steps = torch.arange(6, dtype=torch.float64) / 5
    bands = math.pi * (1 + steps * 111 if linear else 112**steps)
    rope = RoPE(24, axes=2, layout=layout, spectrum=Axial(series=Bands(224, "linear" if linear else "octaves")))
    coords = grid_coords(HEIGHT, WIDTH, spacing=(2 / (HEIGHT - 1), 2 / (WIDTH - 1)), origin=-1)
    check_timm(rope, coords, blocks(bands, bands), module)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("by", ["separate", "max", "min"])
@pytest.mark.parametrize("periods", [None, (0.3, 7.0)])
def test_timm_dinov3(layout, by, periods):
    low, high = periods or (None, None)
    module = create_rope_embed(
        "dinov3", 80, 4, normalize_coords=by, min_period=low, max_period=high, rotate_half=layout == "half"
    )
    steps = torch.arange(5, dtype=torch.float64)
    lengths = 100 ** (steps / 5) if periods is None else 0.3 * (7 / 0.3) ** (steps / 4)
    series = Periods(1, 100, endpoint=False) if periods is None else Periods(*periods)
    rope = RoPE(20, axes=2, layout=layout, spectrum=Axial(series=series))
    coords = normalise(grid_coords(HEIGHT, WIDTH), (HEIGHT, WIDTH), by=by)
    check_timm(rope, coords, blocks(2 * math.pi / lengths, 2 * math.pi / lengths), module)


def test_timm_mixed():
    module = create_rope_embed("mixed", 64, 4, depth=3)
    embeds, theirs = module.get_embed((HEIGHT, WIDTH)).detach(), module.freqs.detach()
    coords = grid_coords(HEIGHT, WIDTH)
    for layer in range(3):
        rope = RoPE(16, axes=2, base=10.0, spectrum=Mixed(), layout="interleaved", num_heads=4)
        assert rope.freqs.shape == (4, 2, 8)
        with torch.no_grad():
            rope.freqs.copy_(theirs.flip(0)[:, layer].movedim(0, 1))  # theirs are (x, y)
        check_turns(
            rope,
            coords,
            angles_of(coords, rope.freqs.detach()),
            shipped=lambda x, layer=layer: apply_rot_embed_cat(x, embeds[layer]),
            tables=timm_tables(embeds[layer], "interleaved"),
        )


def test_mixed_frequencies_start_with_the_speeds_of_timm():
    speeds = create_rope_embed("mixed", 64, 4, depth=1).freqs.detach().norm(dim=0)[0]
    ours = RoPE(16, axes=2, base=10.0, spectrum=Mixed(), num_heads=4).freqs.detach().norm(dim=1)
    torch.testing.assert_close(ours, speeds, atol=0, rtol=1e-6)


def mrope_freqs(base, owners):
    owners = torch.tensor(owners)
    return geometric(base, 2 * len(owners)) * (owners == torch.arange(3)[:, None])


def test_timm_mrope_with_sections_that_can_take_turns():
    module = create_rope_embed("mrope", 256, 4, mrope_section=(12, 10, 10))
    coords = torch.nn.functional.pad(grid_coords(HEIGHT, WIDTH), (1, 0))
    rope = RoPE(64, axes=3, spectrum=Sections((12, 10, 10), interleaved=True))
    check_timm(rope, coords, mrope_freqs(10000, [0, 1, 2] * 10 + [0, 0]), module)


def test_timm_mrope_clamps_sections_that_cannot_and_we_refuse_them():
    # 8 + 12 + 12 are 32 pairs, but a turn in three reaches only 11, 11 and 10 of them: timm's axes get what there is.
    module = create_rope_embed("mrope", 256, 4, mrope_section=(8, 12, 12))
    assert module.axis.bincount().tolist() == [11, 11, 10]
    with pytest.raises(ValueError, match=r"cannot be interleaved; taking turns gives \(11, 11, 10\)"):
        RoPE(64, axes=3, spectrum=Sections((8, 12, 12), interleaved=True))
    fits = RoPE(64, axes=3, spectrum=Sections((11, 11, 10), interleaved=True))
    coords = torch.nn.functional.pad(grid_coords(HEIGHT, WIDTH), (1, 0))
    check_timm(fits, coords, mrope_freqs(10000, ([0, 1, 2] * 11)[:32]), module)


# rotary-embedding-torch


@pytest.mark.parametrize("base", [10000, 500.0])
def test_rotary_embedding_torch_on_a_line(base):
    module = RotaryEmbedding(32, theta=base, cache_if_possible=False)
    coords = sequence_coords(300, offset=4000)
    full = module(coords[:, 0]).detach()
    check_turns(
        RoPE(40, rotary_dim=32, base=base, layout="interleaved"),
        coords,
        angles_of(coords, geometric(base, 32)[None]),
        shipped=lambda x: module.rotate_queries_or_keys(x, offset=4000).detach(),
        tables=(half_width(full.cos(), "interleaved"), half_width(full.sin(), "interleaved")),
    )
    check_spectrum(RoPE(32, base=base), geometric(base, 32)[None])


@pytest.mark.parametrize("kind", ["lang", "pixel"])
@pytest.mark.parametrize("sizes", [(5, 7), (3, 4, 5)])
def test_rotary_embedding_torch_in_space(kind, sizes):
    axes = len(sizes)
    module = RotaryEmbedding(12, freqs_for=kind, max_freq=20, cache_if_possible=False)
    angles = module.get_axial_freqs(*sizes).detach()
    index = torch.stack(torch.meshgrid(*map(torch.arange, sizes), indexing="ij"), -1).flatten(0, -2)
    coords = index if kind == "lang" else 2 * index / (torch.tensor(sizes).double() - 1) - 1
    freqs = geometric(10000, 12) if kind == "lang" else math.pi * torch.linspace(1, 10, 6, dtype=torch.float64)
    spectrum = Axial(series=None if kind == "lang" else Bands(20))
    rope = RoPE(12 * axes, axes=axes, spectrum=spectrum, layout="interleaved")
    check_turns(
        rope,
        coords,
        angles_of(coords, blocks(*[freqs] * axes)),
        shipped=lambda x: apply_rotary_emb(angles, x.unflatten(-2, sizes), seq_dim=-2).flatten(1, axes),
    )
    check_spectrum(rope, blocks(*[freqs] * axes))


@pytest.mark.parametrize("length, scale_base", [(300, 512), (301, 64)])
def test_rotary_embedding_torch_xpos(length, scale_base):
    # Its centre is half the length of the call, which we fix: decoding with a cache would move it.
    module = RotaryEmbedding(16, use_xpos=True, xpos_scale_base=scale_base, cache_if_possible=False)
    q, k = (torch.rand(2, 4, length, 16, dtype=torch.float64) - 0.5 for _ in "qk")
    coords = sequence_coords(length)
    rotation = RoPE(16, layout="interleaved", xpos=XPos(scale_base=scale_base, centre=length // 2))(coords)

    angles = angles_of(coords, geometric(10000, 16)[None])
    scale = (2 * torch.arange(8) + 0.4 * 16).double() / (1.4 * 16)
    power = scale ** ((coords.double() - length // 2) / scale_base)
    for x, role, factor in ((q, "query", power), (k, "key", 1 / power)):
        want = turned(x, angles, "interleaved", factor)
        torch.testing.assert_close(rotation.apply(x, role), want, atol=1e-6, rtol=1e-6)

    atol = 1e-6 + 2**-23 * angles.max().item()
    theirs = module.rotate_queries_and_keys(q.float(), k.float())
    for x, role, want in ((q, "query", theirs[0]), (k, "key", theirs[1])):
        torch.testing.assert_close(rotation.apply(x.float(), role), want.detach(), atol=atol, rtol=2e-5)


# transformers


def peer(module, positions):
    """What a rotary module of transformers makes of positions: what rotates, and the tables."""
    cos, sin = module(torch.zeros(1), positions)
    tables = half_width(cos[:, None], "half"), half_width(sin[:, None], "half")
    return {"shipped": lambda x: apply_rotary_pos_emb(x, x, cos, sin)[0], "tables": tables}


def rows(length, *offsets):
    return sequence_coords(length, offset=torch.tensor(offsets))


@pytest.mark.parametrize("base", [10000.0, 1e6])
def test_transformers_default(base):
    parameters = {"rope_type": "default", "rope_theta": base}
    module = LlamaRotaryEmbedding(LlamaConfig(hidden_size=256, num_attention_heads=4, rope_parameters=parameters))
    coords, rope, freqs = rows(300, 0, 4000), RoPE(64, base=base), geometric(base, 64)[None]
    check_turns(rope, coords, angles_of(coords, freqs), **peer(module, coords[..., 0]))
    check_spectrum(rope, freqs)


@pytest.mark.parametrize("share, head_dim", [(0.25, 64), (0.3, 40), (1.0, 16), (0.5, 18)])
def test_transformers_proportional(share, head_dim):
    parameters = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": share}
    config = LlamaConfig(hidden_size=4 * head_dim, num_attention_heads=4, rope_parameters=parameters)
    module = LlamaRotaryEmbedding(config)
    kept = torch.arange(head_dim // 2) < int(share * head_dim / 2)
    freqs = (geometric(1e6, head_dim) * kept)[None]
    rope, coords = RoPE(head_dim, base=1e6, scaling=Proportional(share)), rows(300, 0, 4000)
    check_turns(rope, coords, angles_of(coords, freqs), **peer(module, coords[..., 0]))
    check_spectrum(rope, freqs)
    torch.testing.assert_close(module.inv_freq.double(), freqs[0], atol=0, rtol=1e-6)


@pytest.mark.parametrize(
    "config, module, sections, interleaved",
    [
        (Qwen2VLTextConfig, Qwen2VLRotaryEmbedding, (16, 24, 24), False),
        (Qwen2VLTextConfig, Qwen2VLRotaryEmbedding, (10, 30, 24), False),
        (Qwen3VLTextConfig, Qwen3VLTextRotaryEmbedding, (24, 20, 20), True),
        (Qwen3VLTextConfig, Qwen3VLTextRotaryEmbedding, (22, 21, 21), True),
    ],
)
def test_transformers_mrope(config, module, sections, interleaved):
    parameters = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": list(sections)}
    module = module(config(hidden_size=512, num_attention_heads=4, head_dim=128, rope_parameters=parameters))
    if interleaved:
        owners = [p % 3 if p < 3 * sections[p % 3] else 0 for p in range(64)]
    else:
        owners = [axis for axis, count in enumerate(sections) for _ in range(count)]
    rope = RoPE(128, axes=3, base=1e6, spectrum=Sections(sections, interleaved))
    coords = torch.randint(0, 4200, (2, 300, 3))
    freqs = mrope_freqs(1e6, owners)
    check_turns(rope, coords, angles_of(coords, freqs), **peer(module, coords.movedim(-1, 0)))
    check_spectrum(rope, freqs)


def test_transformers_dinov3():
    config = DINOv3ViTConfig(hidden_size=256, num_attention_heads=4, patch_size=16)
    module = DINOv3ViTRopePositionEmbedding(config).eval()
    cos, sin = module(torch.zeros(1, 3, 16 * HEIGHT, 16 * WIDTH))
    coords = normalise(grid_coords(HEIGHT, WIDTH), (HEIGHT, WIDTH))
    freqs = 2 * math.pi * geometric(100, 32)
    rope = RoPE(64, axes=2, spectrum=Axial(series=Periods(1, 100, endpoint=False)))
    check_turns(
        rope,
        coords,
        angles_of(coords, blocks(freqs, freqs)),
        shipped=lambda x: apply_rotary_pos_emb(x[None], x[None], cos[None], sin[None])[0][0],
        tables=(half_width(cos, "half"), half_width(sin, "half")),
    )


@pytest.mark.parametrize("head_dim", [196, 392, 412, 428])
def test_transformers_dinov3_has_a_frequency_too_many_for_some_widths(head_dim):
    # It counts exponents from 0 to 1 in float steps of 4 / head_dim, and rounding lets the 1 in.
    theirs = DINOv3ViTRopePositionEmbedding(DINOv3ViTConfig(hidden_size=head_dim, num_attention_heads=1)).inv_freq
    assert len(theirs) == head_dim // 4 + 1
    rope = RoPE(head_dim, axes=2, spectrum=Axial(series=Periods(1, 100, endpoint=False)))
    freqs = 2 * math.pi * geometric(100, head_dim // 2)
    assert len(freqs) == head_dim // 4
    check_spectrum(rope, blocks(freqs, freqs))
    torch.testing.assert_close(theirs[:-1].double() * 2 * math.pi, freqs, atol=0, rtol=1e-6)


# What is no rotation


def test_the_published_vjepa2_rotation_is_none():
    # Its pairs are interleaved and its tables are not: norms change, and so do logits at the same distance.
    x, y = (torch.rand(1, 1, 1, 16, dtype=torch.float64) - 0.5 for _ in "xy")

    def theirs(x, position):
        return rotate_queries_or_keys(x, torch.full((1, 1, 1), position, dtype=torch.float64))

    def ours(x, position):
        return RoPE(16, layout="interleaved")(torch.tensor([[position]])).apply(x)

    for rotate, is_rotation in ((theirs, False), (ours, True)):
        norm_kept = torch.isclose(rotate(x, 5).norm(), x.norm(), atol=1e-6)
        near, far = ((rotate(x, shift + 5) * rotate(y, shift + 2)).sum() for shift in (0, 4))
        shift_kept = torch.isclose(near, far, atol=1e-6)
        assert (norm_kept.item(), shift_kept.item()) == (is_rotation, is_rotation)
