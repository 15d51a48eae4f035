"""How alike an encoding makes positions."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor

from ...encodings import AdditiveEncoding, RotaryEncoding


def similarity(
    encoding: AdditiveEncoding | RotaryEncoding,
    q_coords: Shaped[Tensor, "q a"],
    k_coords: Shaped[Tensor, "k a"],
    *,
    length: int | None = None,
) -> Float[Tensor, "h q k"]:
    """How alike two positions are: 1 for a position and itself.

    For an additive encoding the cosine of the angle between their vectors (and one head); for a rotary one the logit
    of two vectors that are 1 in all channels that turn, over that at distance 0: the mean of the cosines of all
    pairs' angles.

    Args:
        encoding: The encoding.
        q_coords: Positions of the rows.
        k_coords: Positions of the columns.
        length: For encodings that depend on it.

    Example:
        >>> from mmpos.diagnostics import similarity
        >>> coords = grid_coords(height=4, width=6)
        >>> similarity(RoPE(head_dim=8, axes=2), coords[:5], coords).shape
        torch.Size([1, 5, 24])
    """
    if isinstance(encoding, RotaryEncoding):
        q, k = (encoding(coords, length=length).without_factor() for coords in (q_coords, k_coords))
        heads, pairs = q.cos.shape[-3], q.cos.shape[-1]
        left, right = (
            rotation.apply(rotation.cos.new_ones(heads, len(coords), 2 * pairs, dtype=torch.float64), role)
            for rotation, coords, role in ((q, q_coords, "query"), (k, k_coords, "key"))
        )
        return left @ right.mT / (2 * pairs)
    left, right = (F.normalize(encoding(coords, length=length).double(), dim=-1) for coords in (q_coords, k_coords))
    return (left @ right.mT)[None]
