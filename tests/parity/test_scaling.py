import math

import pytest
import torch

pytest.importorskip("rotary_embedding_torch")
pytest.importorskip("timm")
pytest.importorskip("transformers")

from rotary_embedding_torch import RotaryEmbedding
from timm.layers import apply_rot_embed_cat, create_rope_embed
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from mmpos import RoPE, grid_coords, sequence_coords
from mmpos.scaling import NTK, DynamicNTK, Llama3, LongRoPE, PositionInterpolation, YaRN
from tests.rotary_checks import angles_of, blocks, check_spectrum, check_turns, geometric, half_width

HEAD_DIM = 64
SHORT, LONG = [1 + 0.02 * i for i in range(32)], [1 + 0.9 * i for i in range(32)]


# The formulas of transformers in float64: frequencies of 64 channels from those of no scaling


def yarn(freqs, base, factor, train_length, fast=32, slow=1, truncate=True):
    width = 2 * len(freqs)
    low, high = (width * math.log(train_length / (2 * math.pi * r)) / (2 * math.log(base)) for r in (fast, slow))
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    high += 0.001 if low == high else 0
    ramp = ((torch.arange(len(freqs), dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
    return freqs / factor * ramp + freqs * (1 - ramp)


def llama3(freqs, factor, low, high, train_length):
    turns = train_length * freqs / (2 * math.pi)
    smooth = (turns - low) / (high - low)
    blend = (1 - smooth) * freqs / factor + smooth * freqs
    return torch.where(turns > high, freqs, torch.where(turns < low, freqs / factor, blend))


def grown(factor):
    """Frequencies of the base times ``factor ** (d / (d - 2))``."""
    return lambda freqs, base: geometric(base * factor ** (HEAD_DIM / (HEAD_DIM - 2)), HEAD_DIM)


def longrope(divisors):
    return lambda freqs, base: freqs / torch.tensor(divisors, dtype=torch.float64)


def growth(factor, weight=1.0):
    return 0.1 * weight * math.log(factor) + 1


# Rope parameters of transformers, our scaling, the formula, the attention factor.
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONGROPE = {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG}
CASES = {
    "linear": ({"rope_type": "linear", "factor": 3.0}, PositionInterpolation(3.0), lambda freqs, base: freqs / 3, 1),
    "yarn": (YARN, YaRN(4, 2048), lambda freqs, base: yarn(freqs, base, 4, 2048), growth(4)),
    "yarn whole": (
        {**YARN, "truncate": False},
        YaRN(4, 2048, truncate=False),
        lambda freqs, base: yarn(freqs, base, 4, 2048, truncate=False),
        growth(4),
    ),
    "yarn betas": (
        {**YARN, "beta_fast": 20, "beta_slow": 2, "factor": 32.0},
        YaRN(32, 2048, beta_fast=20, beta_slow=2),
        lambda freqs, base: yarn(freqs, base, 32, 2048, 20, 2),
        growth(32),
    ),
    "yarn attention_factor": (
        {**YARN, "attention_factor": 0.8, "mscale": 1.0, "mscale_all_dim": 0.5},
        YaRN(4, 2048, attention_factor=0.8, mscale=1.0, mscale_all_dim=0.5),
        lambda freqs, base: yarn(freqs, base, 4, 2048),
        0.8,
    ),
    "yarn mscale": (
        {**YARN, "factor": 40.0, "mscale": 0.707, "mscale_all_dim": 1.0},
        YaRN(40, 2048, mscale=0.707, mscale_all_dim=1.0),
        lambda freqs, base: yarn(freqs, base, 40, 2048),
        growth(40, 0.707) / growth(40),
    ),
    "yarn mscale of one": (
        {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
        YaRN(4, 2048, mscale=1.0, mscale_all_dim=1.0),
        lambda freqs, base: yarn(freqs, base, 4, 2048),
        1,
    ),
    "yarn mscale alone": (
        {**YARN, "mscale": 0.707},
        YaRN(4, 2048, mscale=0.707),
        lambda freqs, base: yarn(freqs, base, 4, 2048),
        growth(4),
    ),
    "yarn of a short length": (
        {**YARN, "original_max_position_embeddings": 40},
        YaRN(4, 40),
        lambda freqs, base: yarn(freqs, base, 4, 40),
        growth(4),
    ),
    "yarn of a long length": (
        {**YARN, "original_max_position_embeddings": 131072},
        YaRN(4, 131072),
        lambda freqs, base: yarn(freqs, base, 4, 131072),
        growth(4),
    ),
    "llama3": (
        {**LLAMA3, "original_max_position_embeddings": 2048},
        Llama3(8.0, 1.0, 4.0, 2048),
        lambda freqs, base: llama3(freqs, 8, 1, 4, 2048),
        1,
    ),
    "longrope short": (
        {**LONGROPE, "factor": 32.0, "original_max_position_embeddings": 4300},
        LongRoPE(SHORT, LONG, 4300, factor=32),
        longrope(SHORT),
        math.sqrt(1 + math.log(32) / math.log(4300)),
    ),
    "longrope long": (
        {**LONGROPE, "factor": 32.0, "original_max_position_embeddings": 4299},
        LongRoPE(SHORT, LONG, 4299, factor=32),
        longrope(LONG),
        math.sqrt(1 + math.log(32) / math.log(4299)),
    ),
    "longrope attention_factor": (
        {**LONGROPE, "attention_factor": 1.25, "original_max_position_embeddings": 64},
        LongRoPE(SHORT, LONG, 64, attention_factor=1.25),
        longrope(LONG),
        1.25,
    ),
    "dynamic": ({"rope_type": "dynamic", "factor": 2.0}, DynamicNTK(2.0, 2048), grown(2 * 4300 / 2048 - 1), 1),
}
LENGTH = 4300  # of the rows below, which transformers counts itself


def module_of(parameters, base):
    config = LlamaConfig(
        hidden_size=4 * HEAD_DIM,
        num_attention_heads=4,
        max_position_embeddings=2048,
        rope_parameters={"rope_theta": base, **parameters},
    )
    return LlamaRotaryEmbedding(config)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("base", [10000.0, 500000.0])
@pytest.mark.parametrize("name", CASES)
def test_transformers(name, base):
    parameters, scaling, formula, factor = CASES[name]
    freqs = formula(geometric(base, HEAD_DIM), base)[None]
    coords = sequence_coords(300, offset=torch.tensor([0, LENGTH - 300]))
    module = module_of(parameters, base)
    cos, sin = module(torch.zeros(1), coords[..., 0])
    assert module.attention_scaling == pytest.approx(factor, rel=1e-6)
    torch.testing.assert_close(module.inv_freq.double(), freqs[0], atol=0, rtol=1e-6)

    rope = RoPE(HEAD_DIM, base=base, scaling=scaling)
    check_spectrum(rope, freqs, length=LENGTH)
    check_turns(
        rope,
        coords,
        angles_of(coords, freqs),
        shipped=lambda x: apply_rotary_pos_emb(x, x, cos, sin)[0],
        tables=(half_width(cos[:, None], "half"), half_width(sin[:, None], "half")),
        factor=factor,
        length=LENGTH,
    )
    norm = (rope(coords, length=LENGTH).cos.double() ** 2 + rope(coords, length=LENGTH).sin.double() ** 2).sqrt()
    torch.testing.assert_close(norm, torch.full_like(norm, factor), atol=0, rtol=1e-6)


@pytest.mark.parametrize("name", ["linear", "yarn whole", "llama3"])
def test_transformers_with_a_part_of_the_head(name):
    parameters, scaling, formula, factor = CASES[name]
    parameters = {"rope_theta": 10000.0, "partial_rotary_factor": 0.25, **parameters}
    config = LlamaConfig(
        hidden_size=1024, num_attention_heads=4, max_position_embeddings=8192, rope_parameters=parameters
    )
    inv_freq, attention = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config)
    assert attention == pytest.approx(factor)
    want = formula(geometric(10000, 64), 10000.0)
    torch.testing.assert_close(inv_freq.double(), want, atol=0, rtol=1e-6)
    check_spectrum(RoPE(256, rotary_dim=64, scaling=scaling), want[None])


def test_a_row_of_a_batch_has_its_own_length_unlike_in_transformers():
    # transformers lets the longest row decide for all rows, and keeps what a call before grew: we go row by row.
    module = module_of(CASES["dynamic"][0], 10000.0)
    short, long = sequence_coords(300), sequence_coords(4300)
    alone = module(torch.zeros(1), short[None, :, 0])[0]
    padded = torch.stack([torch.cat([short, short.new_zeros(4000, 1)]), long])
    beside = module(torch.zeros(1), padded[..., 0])[0][0, :300]
    assert not torch.allclose(beside, alone[0], atol=0.1)
    rope = RoPE(HEAD_DIM, scaling=DynamicNTK(2.0, 2048))
    got = rope(padded).cos
    assert torch.equal(got[0, :, :300], rope(short).cos)
    torch.testing.assert_close(got[0, 0, :300], half_width(alone[0], "half"), atol=1e-6 + 2**-23 * 300, rtol=0)


@pytest.mark.parametrize("nested", [False, True])
def test_transformers_yarn_loses_truncate_of_a_layer_type(nested):
    # It looks for truncate beside the layer types instead of in them, and so rounds where it was told not to.
    parameters = {**YARN, "rope_theta": 150000.0, "factor": 32.0, "truncate": False}
    config = LlamaConfig(hidden_size=256, num_attention_heads=4, max_position_embeddings=2048)
    config.layer_types = ["full_attention"]
    config.rope_parameters = {"full_attention": parameters} if nested else parameters
    inv_freq, _ = ROPE_INIT_FUNCTIONS["yarn"](config, layer_type="full_attention" if nested else None)
    want = yarn(geometric(150000, 64), 150000, 32, 2048, truncate=False)
    assert ((inv_freq / want - 1).abs().max() > 0.3) == nested
    check_spectrum(RoPE(64, base=150000.0, scaling=YaRN(32, 2048, truncate=False)), want[None])


# rotary-embedding-torch and timm


@pytest.mark.parametrize(
    "options, scaling, freqs",
    [
        ({"interpolate_factor": 3.0}, PositionInterpolation(3.0), geometric(10000, 64) / 3),
        ({"theta_rescale_factor": 4.0}, NTK(4.0), grown(4)(None, 10000)),
    ],
)
def test_rotary_embedding_torch(options, scaling, freqs):
    module = RotaryEmbedding(HEAD_DIM, cache_if_possible=False, **options)
    rope, coords = RoPE(HEAD_DIM, layout="interleaved", scaling=scaling), sequence_coords(300, offset=4000)
    check_turns(
        rope,
        coords,
        angles_of(coords, freqs[None]),
        shipped=lambda x: module.rotate_queries_or_keys(x, offset=4000).detach(),
    )
    check_spectrum(rope, freqs[None])


def test_timm_rescales_each_axis_to_the_grid_it_was_trained_on():
    module = create_rope_embed("cat", 96, 4, in_pixels=False, ref_feat_shape=(16, 12))
    embed = module.get_embed((32, 18))
    rope = RoPE(24, axes=2, layout="interleaved", scaling=[PositionInterpolation(2), PositionInterpolation(1.5)])
    freqs = blocks(geometric(10000, 12) / 2, geometric(10000, 12) / 1.5)
    coords = grid_coords(32, 18)
    check_turns(rope, coords, angles_of(coords, freqs), shipped=lambda x: apply_rot_embed_cat(x, embed))
    check_spectrum(rope, freqs)
