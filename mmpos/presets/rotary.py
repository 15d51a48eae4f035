"""Rotary encodings of papers and released models."""

import math

from ..frequencies import Periods
from ..scaling import Llama3, LongRoPE, YaRN
from ..spectra import Axial, Given, Mixed, Sections
from .base import Preset


def ltx_spectrum(num_heads: int, head_dim: int, base: float = 10000.0) -> Given:
    """Frequencies of LTX-Video, which deals pairs out to the axes over all heads at once.

    Laid head after head, the pairs take turns between t, y and x; the ``i``-th turn has ``pi base ** (i / (n - 1))``
    radians per unit, rising, and pairs that would leave a turn unfinished stand still in front.
    """
    turns, still = divmod(num_heads * head_dim // 2, 3)
    series = [math.pi * base ** (i / (turns - 1)) for i in range(turns)]
    rows = [[0.0] * still + [freq if axis == own else 0.0 for freq in series for own in range(3)] for axis in range(3)]
    pairs = head_dim // 2
    heads = range(0, num_heads * pairs, pairs)
    return Given([[row[head : head + pairs] for row in rows] for head in heads])


# Divisors of the 48 frequencies of Phi-3-vision-128k, found by search, as published.
PHI3_SHORT = (
    *[1.05] * 3, *[1.1] * 3, *[1.2500000000000002] * 2, 1.4000000000000004, 1.4500000000000004, 1.5500000000000005,
    1.8500000000000008, 1.9000000000000008, *[2.000000000000001] * 19, *[2.1000000000000005] * 2, 2.2,
    *[2.3499999999999996] * 4, *[2.3999999999999995] * 2, 2.6499999999999986, 2.6999999999999984, 2.8999999999999977,
    2.9499999999999975, *[3.049999999999997] * 3,
)  # fmt: skip
PHI3_LONG = (
    1.0299999713897705, *[1.0499999523162842] * 2, 1.0799999237060547, *[1.2299998998641968] * 2, 1.2999999523162842,
    1.4499999284744263, 1.5999999046325684, 1.6499998569488525, 1.8999998569488525, 2.859999895095825,
    3.68999981880188, 5.419999599456787, *[5.489999771118164] * 2, 9.09000015258789, 11.579999923706055,
    15.65999984741211, 15.769999504089355, 15.789999961853027, 18.360000610351562, 21.989999771118164,
    23.079999923706055, 30.009998321533203, 32.35000228881836, 32.590003967285156, 35.56000518798828,
    39.95000457763672, 53.840003967285156, 56.20000457763672, 57.95000457763672, 59.29000473022461,
    59.77000427246094, 59.920005798339844, 61.190006256103516, 61.96000671386719, 62.50000762939453,
    63.3700065612793, *[63.48000717163086] * 2, 63.66000747680664, 63.850006103515625, 64.08000946044922,
    64.760009765625, 64.80001068115234, *[64.81001281738281] * 2,
)  # fmt: skip

ROTARY: dict[str, Preset] = {
    # Touvron et al., Llama 2, 2023, sec. 2.2. https://arxiv.org/abs/2307.09288
    "llama2": Preset("RoPE", {"head_dim": 128, "base": 10000.0}),
    # Dubey et al., The Llama 3 herd of models, 2024, sec. 3.2, and its released code. https://arxiv.org/abs/2407.21783
    "llama3_1": Preset("RoPE", {"head_dim": 128, "base": 500000.0, "scaling": Llama3(8, 1, 4, train_length=8192)}),
    # Wang et al., Qwen2-VL, 2024, sec. 2.1; config of 7B. https://arxiv.org/abs/2409.12191
    "qwen2_vl": Preset("RoPE", {"head_dim": 128, "axes": 3, "base": 1e6, "spectrum": Sections((16, 24, 24))}),
    # Bai et al., Qwen3-VL, 2025; config of 8B. https://arxiv.org/abs/2511.21631
    "qwen3_vl": Preset(
        "RoPE", {"head_dim": 128, "axes": 3, "base": 5e6, "spectrum": Sections((24, 20, 20), interleaved=True)}
    ),
    # Black et al., GPT-NeoX-20B, 2022, sec. 2.1.1: a quarter of each head turns. https://arxiv.org/abs/2204.06745
    "gpt_neox": Preset("RoPE", {"head_dim": 96, "rotary_dim": 24}),
    # OpenAI, gpt-oss model card, 2025, and the released config. https://arxiv.org/abs/2508.10925
    "gpt_oss": Preset(
        "RoPE", {"head_dim": 64, "base": 150000.0, "scaling": YaRN(32, train_length=4096, truncate=False)}
    ),
    # Abdin et al., Phi-3, 2024; config of Phi-3-vision-128k. https://arxiv.org/abs/2404.14219
    "phi3_long": Preset(
        "RoPE", {"head_dim": 96, "scaling": LongRoPE(PHI3_SHORT, PHI3_LONG, train_length=4096, factor=32)}
    ),
    # DeepSeek-AI, DeepSeek-V3, 2024, sec. 2.1.1 and 4.3, and the released code. https://arxiv.org/abs/2412.19437
    # The 64 decoupled channels, which turn, stand in front of the 128 others here and behind them there. Attention
    # must be scaled by (0.1 ln 40 + 1) ** 2 / sqrt(192): the two mscale cancel in the attention factor.
    "deepseek_v3": Preset(
        "RoPE",
        {
            "head_dim": 192,
            "rotary_dim": 64,
            "layout": "interleaved",
            "scaling": YaRN(40, train_length=4096, mscale=1.0, mscale_all_dim=1.0),
        },
    ),
    # Fang et al., EVA-02, 2023, and its released code. https://arxiv.org/abs/2303.11331
    # Grids of any size are rescaled to the 16 x 16 of pre-training: spacing 16 / size.
    "eva02": Preset("RoPE", {"head_dim": 64, "axes": 2, "layout": "interleaved"}),
    # Siméoni et al., DINOv3, 2025, sec. 3.2. https://arxiv.org/abs/2508.10104
    # Coordinates are the centres of patches from -1 to 1: normalise(grid_coords(...), (height, width)).
    "dinov3": Preset("RoPE", {"head_dim": 64, "axes": 2, "spectrum": Axial(series=Periods(1, 100, endpoint=False))}),
    # Heo et al., Rotary position embedding for vision transformer, 2024, sec. 3.2. https://arxiv.org/abs/2403.13298
    # Columns come before rows in each head. The mixed one is learned in each layer; heads are those of ViT-B.
    "rope_vit_axial": Preset(
        "RoPE", {"head_dim": 64, "axes": 2, "base": 100.0, "layout": "interleaved", "spectrum": Axial(order=(1, 0))}
    ),
    "rope_vit_mixed": Preset(
        "RoPE",
        {"head_dim": 64, "axes": 2, "base": 10.0, "layout": "interleaved", "spectrum": Mixed(), "num_heads": 12},
    ),
    # Agrawal et al., Pixtral 12B, 2024, and its released code. https://arxiv.org/abs/2410.07073
    "pixtral": Preset("RoPE", {"head_dim": 64, "axes": 2, "spectrum": Axial(dealt=True)}),
    # Black Forest Labs, FLUX.1, 2024, released code. https://github.com/black-forest-labs/flux
    # Text is at (0, 0, 0), images are at (0, y, x).
    "flux": Preset(
        "RoPE", {"head_dim": 128, "axes": 3, "layout": "interleaved", "spectrum": Axial(weights=(16, 56, 56))}
    ),
    # Black Forest Labs, FLUX.2, 2025, released code. https://github.com/black-forest-labs/flux2
    # Axes (t, y, x, l): images are at (0, y, x, 0), text is at (0, 0, 0, l), reference images count on along t.
    "flux2": Preset("RoPE", {"head_dim": 128, "axes": 4, "base": 2000.0, "layout": "interleaved"}),
    # Wu et al., Qwen-Image, 2025, and its released code. https://arxiv.org/abs/2508.02324
    # Images are centred: rows from floor(height / 2) - height, columns alike. Text stands on the diagonal of the axes
    # from max(floor(height / 2), floor(width / 2)) on.
    "qwen_image": Preset(
        "RoPE", {"head_dim": 128, "axes": 3, "layout": "interleaved", "spectrum": Axial(weights=(16, 56, 56))}
    ),
    # Kong et al., HunyuanVideo, 2024, and its released code. https://arxiv.org/abs/2412.03603
    "hunyuan_video": Preset(
        "RoPE",
        {"head_dim": 128, "axes": 3, "base": 256.0, "layout": "interleaved", "spectrum": Axial(weights=(16, 56, 56))},
    ),
    # Wan Team, Wan, 2025, released code: y and x have 2 floor(d / 6) channels each, t the rest.
    # https://arxiv.org/abs/2503.20314
    "wan": Preset(
        "RoPE",
        {"head_dim": 128, "axes": 3, "layout": "interleaved", "spectrum": Axial(weights=(1, 1, 1), remainder=0)},
    ),
    # Yang et al., CogVideoX, 2024, and its released code. https://arxiv.org/abs/2408.06072
    "cogvideox": Preset(
        "RoPE", {"head_dim": 64, "axes": 3, "layout": "interleaved", "spectrum": Axial(weights=(2, 3, 3))}
    ),
    # Azabou et al., POYO, 2023, and its released code (torch_brain): seconds; half of each head turns.
    # https://arxiv.org/abs/2310.16046
    "poyo": Preset(
        "RoPE",
        {
            "head_dim": 64,
            "rotary_dim": 32,
            "layout": "interleaved",
            "spectrum": Axial(series=Periods(1e-4, 2.0627)),
        },
    ),
    # HaCohen et al., LTX-Video, 2025, and its released code. https://arxiv.org/abs/2501.00103
    # Coordinates from -1/2 to 1/2: seconds / 20 - 1/2, pixels / 2048 - 1/2.
    "ltx_video": Preset(
        "RoPE",
        {"head_dim": 64, "axes": 3, "layout": "interleaved", "spectrum": ltx_spectrum(32, 64), "num_heads": 32},
    ),
}
