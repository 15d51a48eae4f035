"""What stands in for modules of timm that hooks cannot reach into: classes to which their objects change.

An object whose class changes keeps its weights, their names, its hooks and its place in the model.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from timm.layers.patch_dropout import PatchDropout, patch_dropout_forward
from timm.models.beit import Attention as BeitAttention
from timm.models.swin_transformer import WindowAttention
from torch import Tensor

from ...encodings.base import Role


class NotingPatchDropout(PatchDropout):
    """Patch dropout that tells which patches it kept, None where it kept all."""

    kept: Tensor | None = None

    def forward(self, x: Float[Tensor, "b n dim"]) -> Float[Tensor, "b m dim"]:
        x, self.kept = patch_dropout_forward(x, self.prob, self.num_prefix_tokens, self.ordered, self.training)
        return x


class TurningAttention(BeitAttention):
    """BEiT's attention, with a turn of its queries and keys; ``turn`` is set by the slot."""

    turn: Callable[[Role, Tensor], Tensor]

    def forward(
        self, x: Float[Tensor, "b n dim"], shared_rel_pos_bias: Float[Tensor, "*one h n n"] | None = None
    ) -> Float[Tensor, "b n dim"]:
        offsets: list[Tensor] = [each for each in (self.q_bias, self.k_bias, self.v_bias) if each is not None]
        offset = torch.cat(offsets) if offsets else None
        projected = F.linear(x, self.qkv.weight, offset)
        q, k, v = rearrange(projected, "b n (part h d) -> part b h n d", part=3, h=self.num_heads)
        q, k = self.turn("query", q), self.turn("key", k)
        bias = shared_rel_pos_bias
        if self.relative_position_bias_table is not None:
            own = self._get_rel_pos_bias()
            bias = own if bias is None else own + bias
        attended = F.scaled_dot_product_attention(
            q, k, v, attn_mask=bias, dropout_p=self.attn_drop.p if self.training else 0.0
        )
        return self.proj_drop(self.proj(rearrange(attended, "b h n d -> b n (h d)")))


class BiasedWindowAttention(WindowAttention):
    """Swin's attention, with a bias of ours in the place of its table; ``window_bias`` is set by the slot."""

    window_bias: Callable[[Sequence[int], torch.device], Tensor]

    def _get_rel_pos_bias(self) -> Float[Tensor, "1 #h n n"]:
        weight = self.qkv.weight
        return self.window_bias(tuple(map(int, self.window_size)), weight.device).to(weight.dtype)[None]

    def set_window_size(self, window_size: tuple[int, int]) -> None:
        """Refuses: the bias has to change with the window."""
        raise ValueError("the bias of this model is one of mmpos: call set_input_size of mmpos.adapters.timm")
