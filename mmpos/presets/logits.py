"""Biases and scales of attention logits of papers and released models."""

import math

from .base import Preset

LOGITS: dict[str, Preset] = {
    # Shaw et al., Self-attention with relative position representations, 2018, sec. 4.1, base model; learned in each
    # layer. https://arxiv.org/abs/1803.02155
    "shaw": Preset("RelativeLogits", {"num_heads": 8, "head_dim": 64, "extent": 16, "per_head": True}),
    # Zhai et al., Actions speak louder than words (HSTU), 2024, and its released code: seconds since an event, in 128
    # logarithmic buckets. https://arxiv.org/abs/2402.17152
    "hstu_time": Preset(
        "T5Bias",
        {"num_heads": 8, "boundaries": tuple(math.exp(0.301 * b) for b in range(1, 129)), "bidirectional": False},
    ),
    # Dai et al., Transformer-XL, 2019, sec. 3.3; sizes of the large model. https://arxiv.org/abs/1901.02860
    "transformer_xl": Preset("RelativeSinusoids", {"num_heads": 16, "head_dim": 64, "dim": 1024}),
    # Kirillov et al., Segment anything, 2023, and its released code; global layers of ViT-B, windowed ones have extent
    # (13, 13). https://arxiv.org/abs/2304.02643
    "sam_decomposed": Preset(
        "RelativeLogits", {"num_heads": 12, "head_dim": 64, "extent": (63, 63), "beyond": "error", "scale": 1.0}
    ),
    # Thinking Machines, Inkling, 2026, code in transformers 5.24; full layers, sliding ones have extent 511.
    "inkling": Preset(
        "RelativeLogits", {"num_heads": 64, "rank": 16, "dim": 6144, "extent": 1023, "ahead": 0, "beyond": "zero"}
    ),
    # Meta, Llama 4, 2025, released code; in layers without rotation.
    "llama4_temperature": Preset(
        "LogScale", {"train_length": 8192, "coefficient": 0.1, "ratio": "stepped", "by": "position"}
    ),
    # Inkling 2, code in transformers 5.24; full layers.
    "inkling2_scale": Preset("LogScale", {"train_length": 128000, "coefficient": 0.1, "by": "position"}),
}
