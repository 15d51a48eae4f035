"""Largest error of the cosines of RoPE at large positions, here and in the peers: python -m benchmarks.exactness.

Each makes the 32 cosines of a head of 64 channels with base 10,000 as it does by default in float32; the truth is
computed with 50 digits.
"""

import warnings
from collections.abc import Callable

import mpmath
import torch
from torch import Tensor

import mmpos

POSITIONS = (10, 4095, 131071, 10**6, 10**9, 2**31 - 1)


def ours(position: int) -> Tensor:
    return mmpos.RoPE(head_dim=64)(torch.tensor([[position]])).cos[0, 0]


def ours_bf16(position: int) -> Tensor:
    return mmpos.RoPE(head_dim=64).bfloat16()(torch.tensor([[position]])).cos[0, 0]


def transformers(position: int, dtype: torch.dtype = torch.float32) -> Tensor:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(hidden_size=64, num_attention_heads=1, head_dim=64)
    cos, _ = LlamaRotaryEmbedding(config).to(dtype)(torch.zeros(1, dtype=dtype), torch.tensor([[position]]))
    return cos[0, 0, :32]


def transformers_bf16(position: int) -> Tensor:
    return transformers(position, torch.bfloat16)


def rotary_embedding_torch(position: int) -> Tensor:
    from rotary_embedding_torch import RotaryEmbedding

    angles = RotaryEmbedding(dim=64, cache_if_possible=False)(torch.tensor([position]).float())
    return angles[0, ::2].cos()


def x_transformers(position: int) -> Tensor:
    from x_transformers.x_transformers import RotaryEmbedding

    angles, _ = RotaryEmbedding(64)(torch.tensor([position]))
    return angles.reshape(-1)[::2].cos()


MAKERS: dict[str, Callable[[int], Tensor]] = {
    "mmpos": ours,
    "mmpos, module in bf16": ours_bf16,
    "transformers": transformers,
    "transformers, module in bf16": transformers_bf16,
    "rotary-embedding-torch": rotary_embedding_torch,
    "x-transformers": x_transformers,
}


def error(cos: Tensor, position: int) -> float:
    """Largest difference from the true cosines."""
    with mpmath.workdps(50):
        truth = [mpmath.cos(position * mpmath.mpf(10000) ** (mpmath.mpf(-2 * i) / 64)) for i in range(32)]
    return max(abs(float(true - mpmath.mpf(value))) for true, value in zip(truth, cos.double().tolist(), strict=True))


def table() -> str:
    """Errors by package and position, as Markdown."""
    lines = ["| largest error of cos at position | " + " | ".join(f"{position:,}" for position in POSITIONS) + " |"]
    lines.append("|---" * (len(POSITIONS) + 1) + "|")
    for name, make in MAKERS.items():
        lines.append(f"| {name} | " + " | ".join(f"{error(make(p).detach(), p):.0e}" for p in POSITIONS) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(table())
