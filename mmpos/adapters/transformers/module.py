"""The module that stands in a transformers model where its rotary module was."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor, nn

from ...encodings import RoPE
from ...encodings.base import Layout
from ...scaling import DynamicNTK, LongRoPE
from .settings import ORIGINAL, head_width

CHANGED = ("rope_parameters", "max_position_embeddings", ORIGINAL)  # settings that are written
ALL = "all"  # the kind of layers that are not told apart


@dataclass(frozen=True)
class Family:
    """What the attention of a family takes from its rotary module.

    Args:
        layout: Which channels pair up.
        by_kind: Whether the module is asked for each kind of layer.
        partial: Whether only as many channels turn as there are cosines; others need them for the whole head.
        width: 2 if every cosine stands twice, once for each channel of its pair, and 1 if once.
        axes: Axes of the positions.
        recomputes: Whether generation forgets its cache where LongRoPE changes its frequencies.
        complex: Whether cosine and sine are one complex number, in float32.
    """

    layout: Layout = "half"
    by_kind: bool = False
    partial: bool = False
    width: int = 2
    axes: int = 1
    recomputes: bool = False
    complex: bool = False


FAMILIES = {
    "CohereRotaryEmbedding": Family(layout="interleaved"),
    "Cohere2RotaryEmbedding": Family(layout="interleaved"),
    "GPTNeoXRotaryEmbedding": Family(partial=True),
    "Gemma2RotaryEmbedding": Family(),
    "Gemma3RotaryEmbedding": Family(by_kind=True),
    "GptOssRotaryEmbedding": Family(width=1),
    "Llama4TextRotaryEmbedding": Family(layout="interleaved", width=1, complex=True),
    "LlamaRotaryEmbedding": Family(),
    "MistralRotaryEmbedding": Family(),
    "Olmo3RotaryEmbedding": Family(by_kind=True),
    "Phi3RotaryEmbedding": Family(partial=True, recomputes=True),
    "Qwen2RotaryEmbedding": Family(),
    "Qwen2VLRotaryEmbedding": Family(axes=3),
    "Qwen2_5OmniRotaryEmbedding": Family(axes=3),
    "Qwen2_5_VLRotaryEmbedding": Family(axes=3),
    "Qwen3RotaryEmbedding": Family(),
    "Qwen3VLTextRotaryEmbedding": Family(axes=3),
    "SmolLM3RotaryEmbedding": Family(),
}


class TransformersRotary(nn.Module):
    """Stands where a model has its rotary module: positions to cosine and sine as its attention takes them.

    Scalings that depend on the length go by the largest position of the call, as in transformers.
    """

    def __init__(self, original: nn.Module, config: Any, family: Family, ropes: dict[str, RoPE | None]):
        super().__init__()
        self.original = original  # to be put back; what it holds is not saved
        self.config, self.family, self.head_dim = config, family, head_width(config)
        self.before = {name: copy.deepcopy(value) for name, value in vars(config).items() if name in CHANGED}
        self.kinds = tuple(ropes)
        self.ropes = nn.ModuleDict({kind: rope for kind, rope in ropes.items() if rope is not None})

    def forward(
        self, x: Float[Tensor, "b n c"], position_ids: Int[Tensor, "*axes #b n"], layer_type: str | None = None
    ) -> tuple[Float[Tensor, "#b n p"], Float[Tensor, "#b n p"]] | Complex[Tensor, "#b n p"]:
        cos, sin = self._cos_sin(x, position_ids, layer_type)
        return torch.complex(cos.float(), sin.float()) if self.family.complex else (cos, sin)

    def _cos_sin(
        self, x: Float[Tensor, "b n c"], position_ids: Int[Tensor, "*axes #b n"], layer_type: str | None
    ) -> tuple[Float[Tensor, "#b n p"], Float[Tensor, "#b n p"]]:
        kind = ALL if layer_type is None else layer_type
        rope = self.rope_of(kind)
        if rope is None:
            rows = position_ids.expand(self.family.axes, -1, -1)[0]
            ones = x.new_ones(*rows.shape, self.head_dim * self.family.width // 2)
            return ones, torch.zeros_like(ones)
        coords = position_ids[..., None]
        if self.family.axes > 1:
            coords = position_ids.expand(self.family.axes, -1, -1).movedim(0, -1)
        rotation = rope(coords, length=self._length(position_ids, rope))
        dtype = torch.float32 if self.family.complex else x.dtype
        cos, sin = (self._widened(part.squeeze(-3)).to(dtype) for part in rotation[:2])
        return cos, sin

    def rope_of(self, kind: str) -> RoPE | None:
        """The encoding of a kind of layer, None if it does not rotate."""
        rope = self.ropes[kind] if kind in self.ropes else None  # noqa: SIM401, get is not in all versions of torch
        assert isinstance(rope, RoPE | None)
        return rope

    def _widened(self, part: Float[Tensor, "b n p"]) -> Float[Tensor, "b n w"]:
        if self.family.width == 1:
            return part
        return part.repeat_interleave(2, -1) if self.family.layout == "interleaved" else torch.cat([part, part], -1)

    def _length(self, position_ids: Int[Tensor, "*axes b n"], rope: RoPE) -> Int[Tensor, ""] | None:
        scaling = rope.scaling
        if not isinstance(scaling, DynamicNTK | LongRoPE):
            return None
        length = position_ids.amax() + 1
        kept = self.family.recomputes and isinstance(scaling, LongRoPE)
        if not (kept or torch.compiler.is_compiling() or length.is_meta):
            _refuse_crossing(scaling, int(position_ids.amin()), int(length))
        return length


def _refuse_crossing(scaling: DynamicNTK | LongRoPE, first: int, length: int) -> None:
    if first == 0 or length <= scaling.train_length:
        return
    ratio = scaling.factor or 1
    instead = (
        f"NTK({ratio} * n / {scaling.train_length} - {ratio - 1}) for a length n"
        if isinstance(scaling, DynamicNTK)
        else "a LongRoPE with long_factors as its short_factors"
    )
    raise ValueError(
        f"a call from position {first} on passes train_length ({scaling.train_length}), where "
        f"{type(scaling).__name__} changes frequencies, so that cached keys would not fit: give the model {instead}"
    )
