"""What other packages have for the same purpose: each makes what an encoding of ours makes, of the same numbers.

A function here imports its package, so that one that is not installed is left out, and gives a call and how its result
is read as ours. Tables that packages keep between calls are emptied, for ours keep none.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mmpos.encodings import Encoding

from .specs import DIM, FIELDS, HEADS, WIDTH


class Peer(NamedTuple):
    call: Callable[[], Any]
    alike: Callable[[Any], Tensor]


class Problem(NamedTuple):
    """What is to be encoded: our encoding, whose learned tensors others take over, and where tokens are."""

    encoding: Encoding
    size: tuple[int, ...]
    coords: Tensor

    @property
    def device(self) -> torch.device:
        return self.coords.device

    @property
    def positions(self) -> Tensor:
        return self.coords[:, 0].float()


Maker = Callable[[Problem], Peer]


def rows(result: Tensor) -> Tensor:
    return result.reshape(-1, result.shape[-1])


# Additive encodings


def positional_encodings(problem: Problem) -> Peer:
    from positional_encodings import torch_encodings

    module = getattr(torch_encodings, f"PositionalEncoding{len(problem.size)}D")(DIM).to(problem.device)
    x = torch.zeros(1, *problem.size, DIM, device=problem.device)

    def call() -> Tensor:
        module.cached_penc = None
        return module(x).flatten(1, -2)

    return Peer(call, rows)


def timm_sincos(problem: Problem) -> Peer:
    from timm.layers import build_sincos2d_pos_embed

    size, device = list(problem.size), problem.device
    return Peer(lambda: build_sincos2d_pos_embed(size, DIM, device=device), rows)


def timm_fourier(problem: Problem) -> Peer:
    from timm.layers import build_fourier_pos_embed

    size, options = list(problem.size), {"linear_bands": True, "include_grid": True, "device": problem.device}

    def call() -> Tensor:
        parts = build_fourier_pos_embed(size, num_bands=64, max_res=224, **options)
        return torch.cat([part.flatten(2) for part in parts], dim=-1).flatten(0, 1)

    return Peer(call, rows)


def perceiver(problem: Problem) -> Peer:
    from transformers.models.perceiver.modeling_perceiver import PerceiverFourierPositionEncoding

    module = PerceiverFourierPositionEncoding(64, (224, 224), concat_pos=True)
    options = {"batch_size": 1, "device": problem.device, "dtype": torch.float32}
    return Peer(lambda: module(problem.size, **options), rows)


def sam(problem: Problem) -> Peer:
    from transformers import SamVisionConfig
    from transformers.models.sam.modeling_sam import SamPositionalEmbedding

    module = SamPositionalEmbedding(SamVisionConfig(num_pos_feats=DIM // 2, scale=1.0)).to(problem.device)
    with torch.no_grad():
        module.positional_embedding.copy_(problem.encoding.state_dict()["turns"].flip(0))  # rows (x, y) there
    places = ((problem.coords + 1) / 2).flip(-1).float()
    return Peer(lambda: module(places), rows)


def diffusers_steps(problem: Problem) -> Peer:
    from diffusers.models.embeddings import get_timestep_embedding

    positions = problem.coords[:, 0]
    return Peer(lambda: get_timestep_embedding(positions, DIM, downscale_freq_shift=0), rows)


def whisper(problem: Problem) -> Peer:
    from transformers.models.whisper.modeling_whisper import sinusoids

    device = problem.device
    return Peer(lambda: sinusoids(len(problem.coords), DIM).to(device), rows)


def x_transformers_sinusoids(problem: Problem) -> Peer:
    from x_transformers.x_transformers import ScaledSinusoidalEmbedding

    module = ScaledSinusoidalEmbedding(DIM).to(problem.device)
    torch.nn.init.ones_(module.scale)
    x = torch.zeros(1, len(problem.coords), DIM, device=problem.device)
    return Peer(lambda: module(x), rows)


def x_transformers_table(problem: Problem) -> Peer:
    from x_transformers.x_transformers import AbsolutePositionalEmbedding

    module = AbsolutePositionalEmbedding(DIM, len(problem.coords)).to(problem.device)
    with torch.no_grad():
        module.emb.weight.copy_(problem.encoding.get_parameter("weight") / module.scale)
    x = torch.zeros(1, len(problem.coords), DIM, device=problem.device)
    return Peer(lambda: module(x), rows)


# Rotary encodings: cosines and sines, one of each per pair of channels


def halves(result: tuple[Tensor, Tensor]) -> Tensor:
    """From widths in which pair ``i`` stands at ``i`` and ``i + p``."""
    return torch.cat([part.reshape(-1, part.shape[-1])[:, : part.shape[-1] // 2] for part in result[:2]], dim=-1)


def neighbours(result: tuple[Tensor, Tensor]) -> Tensor:
    """From widths in which pair ``i`` stands at ``2 i`` and ``2 i + 1``."""
    return torch.cat([part.reshape(-1, part.shape[-1])[:, ::2] for part in result[:2]], dim=-1)


def transformers_rope(problem: Problem) -> Peer:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    module = LlamaRotaryEmbedding(LlamaConfig(hidden_size=WIDTH, num_attention_heads=1, head_dim=WIDTH))
    module, x = module.to(problem.device), torch.zeros(1, device=problem.device)
    positions = problem.coords[None, :, 0]
    return Peer(lambda: module(x, positions), halves)


def rotary_embedding_torch(problem: Problem) -> Peer:
    from rotary_embedding_torch import RotaryEmbedding

    axes = len(problem.size)
    theta = 100 if axes == 2 else 10000
    module = RotaryEmbedding(WIDTH // axes, theta=theta, cache_if_possible=False).to(problem.device)
    positions = problem.positions

    def call() -> tuple[Tensor, Tensor]:
        angles = module(positions) if axes == 1 else module.get_axial_freqs(*problem.size)
        return angles.cos(), angles.sin()

    return Peer(call, neighbours)


def x_transformers_rope(problem: Problem) -> Peer:
    from x_transformers.x_transformers import RotaryEmbedding

    module, positions = RotaryEmbedding(WIDTH).to(problem.device), problem.coords[:, 0]

    def call() -> tuple[Tensor, Tensor]:
        angles, _ = module(positions)
        return angles.cos(), angles.sin()

    return Peer(call, neighbours)


def diffusers_rope(problem: Problem) -> Peer:
    from diffusers.models.embeddings import get_1d_rotary_pos_embed

    positions = problem.coords[:, 0]
    return Peer(lambda: get_1d_rotary_pos_embed(WIDTH, positions, use_real=True), neighbours)


def flux(problem: Problem) -> Peer:
    from diffusers.models.transformers.transformer_flux import FluxPosEmbed

    module = FluxPosEmbed(10000, [16, 56, 56])
    return Peer(lambda: module(problem.coords), neighbours)


def timm_rope(problem: Problem) -> Peer:
    from timm.layers import RotaryEmbeddingCat

    module = RotaryEmbeddingCat(WIDTH, in_pixels=False, temperature=100.0, rotate_half=True).to(problem.device)
    size = list(problem.size)
    return Peer(lambda: module.get_embed(size), lambda embed: halves(tuple(embed.chunk(2, dim=-1))[::-1]))


def timm_mixed(problem: Problem) -> Peer:
    from timm.layers import create_rope_embed

    module = create_rope_embed("mixed", HEADS * WIDTH, HEADS, depth=1).to(problem.device)
    with torch.no_grad():
        module.freqs.copy_(problem.encoding.get_parameter("freqs").movedim(0, 1).flip(0)[:, None])  # rows (x, y)
    size = list(problem.size)
    return Peer(lambda: module.get_embed(size), lambda embed: neighbours(tuple(embed.chunk(2, dim=-1))[::-1]))


# Biases


def x_transformers_alibi(problem: Problem) -> Peer:
    from x_transformers.x_transformers import AlibiPositionalBias

    module, positions = AlibiPositionalBias(heads=HEADS).to(problem.device), problem.positions
    return Peer(lambda: module.forward_custom_pos(positions), lambda bias: bias)


def transformers_t5(problem: Problem) -> Peer:
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    config = T5Config(d_model=DIM, num_heads=HEADS, d_kv=WIDTH, is_decoder=False)
    layer = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).to(problem.device)
    layer.relative_attention_bias.load_state_dict(problem.encoding.state_dict())
    n = len(problem.coords)
    return Peer(lambda: layer.compute_bias(n, n), lambda bias: bias[0])


def x_transformers_t5(problem: Problem) -> Peer:
    from x_transformers.x_transformers import RelativePositionBias

    module = RelativePositionBias(scale=1.0, num_buckets=32, max_distance=128, heads=HEADS).to(problem.device)
    module.relative_attention_bias.load_state_dict(problem.encoding.state_dict())
    n = len(problem.coords)
    return Peer(lambda: module(n, n), lambda bias: bias)


def timm_swin(problem: Problem) -> Peer:
    from timm.layers import RelPosBias

    module = RelPosBias(problem.size, HEADS).to(problem.device)
    with torch.no_grad():
        module.relative_position_bias_table.copy_(problem.encoding.get_parameter("weight").flatten(0, -2))
    return Peer(module.get_bias, lambda bias: bias[0])


def timm_continuous(problem: Problem) -> Peer:
    from timm.layers import RelPosMlp

    module = RelPosMlp(problem.size, HEADS, mode="swin", hidden_dim=512).to(problem.device).eval()
    with torch.no_grad():
        for other, own in zip(module.mlp.parameters(), problem.encoding.get_submodule("mlp").parameters(), strict=True):
            other.copy_(own)
    return Peer(module.get_bias, lambda bias: bias[0])


# Rotations, besides those of `rotation.PEERS`: from cosines and sines of ours to what turns queries or keys


def diffusers_turn(rotation: Any) -> Callable[[Tensor], Tensor]:
    from diffusers.models.embeddings import apply_rotary_emb

    wide = tuple(part[0].repeat_interleave(2, dim=-1) for part in rotation[:2])
    return lambda x: apply_rotary_emb(x, wide)


def x_transformers_turn(rotation: Any) -> Callable[[Tensor], Tensor]:
    from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

    pairs = rotation.cos.shape[-1]
    module = RotaryEmbedding(2 * pairs).to(rotation.cos.device)
    angles, _ = module(torch.arange(rotation.cos.shape[-2], device=rotation.cos.device))
    return lambda x: apply_rotary_pos_emb(x, angles)


# Calendars


def pandas_fields(seconds: Tensor, zone: str | None) -> Peer:
    """The accessors of an index; the first day and the first month are 1 there."""
    import numpy as np
    import pandas as pd

    index = pd.DatetimeIndex(seconds.numpy().astype("datetime64[s]"))
    local = index if zone is None else index.tz_localize("UTC").tz_convert(zone)
    first = torch.tensor([int(name in ("day_of_month", "day_of_year", "month_of_year")) for name in FIELDS])
    return Peer(
        lambda: [getattr(local, name) for name in FIELDS.values()],
        lambda columns: torch.from_numpy(np.stack(columns, axis=-1).astype(np.int64)) - first,
    )
