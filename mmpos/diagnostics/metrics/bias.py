"""What a bias of attention logits takes away, and how far it lets a head see."""

import math

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from ...encodings import AttentionBias


def bias_matrix(
    bias: AttentionBias, q_coords: Shaped[Tensor, "q a"], k_coords: Shaped[Tensor, "k a"], *, seed: int = 0
) -> Float[Tensor, "h q k"]:
    """The bias of queries and keys at these coordinates.

    What a bias reads besides coordinates (queries, keys or tokens) is drawn from a normal distribution.

    Args:
        bias: The bias.
        q_coords: Coordinates of the queries.
        k_coords: Coordinates of the keys.
        seed: Of what is drawn.

    Example:
        >>> from mmpos.diagnostics import bias_matrix
        >>> coords = sequence_coords(4)
        >>> bias_matrix(ALiBi(num_heads=8), coords, coords)[0, 3]
        tensor([-1.5000, -1.0000, -0.5000, -0.0000])
    """
    shapes = {
        "query": lambda: (_size(bias, "num_heads"), len(q_coords), _size(bias, "head_dim")),
        "key": lambda: (
            getattr(bias, "num_kv_heads", None) or _size(bias, "num_heads"),
            len(k_coords),
            _size(bias, "head_dim"),
        ),
        "tokens": lambda: (len(q_coords), _size(bias, "dim")),
    }
    generator = torch.Generator().manual_seed(seed)
    content = {name: torch.randn(shapes[name](), generator=generator) for name in sorted(bias.needs)}
    device = q_coords.device
    return bias(q_coords, k_coords, **{name: part.to(device) for name, part in content.items()}).detach()


def bias_slopes(distances: Float[Tensor, " m"], curve: Float[Tensor, "h m"]) -> Float[Tensor, " h"]:
    """What each head loses per coordinate unit: minus the slope of the line that fits its curve best.

    Args:
        distances: Distances from query to key.
        curve: The bias at each.

    Example:
        >>> from mmpos.diagnostics import bias_slopes
        >>> bias_slopes(torch.arange(3.0), torch.tensor([[0.0, -0.5, -1.0], [1.0, 1.0, 1.0]]))
        tensor([0.5000, -0.0000], dtype=torch.float64)
    """
    x = distances.double() - distances.double().mean()
    return -(curve.double() * x).sum(-1) / x.square().sum()


def bias_reach(
    distances: Float[Tensor, " m"], curve: Float[Tensor, "h m"], factor: float = 100.0
) -> Float[Tensor, " h"]:
    """The least distance at which a key weighs ``factor`` times less than at the least one; infinite if none does.

    The bias has fallen by ``log(factor)`` there, all else being equal.

    Args:
        distances: Distances from query to key, rising.
        curve: The bias at each.
        factor: Above 1.

    Raises:
        ValueError: If ``factor`` is not above 1.
    """
    if not 1 < factor < math.inf:
        raise ValueError(f"factor must be above 1 and finite, got {factor}")
    fallen = curve.double() <= curve[:, :1].double() - math.log(factor)
    first = fallen.int().argmax(-1)
    return distances.double()[first].where(fallen.any(-1), math.inf)


def _size(bias: AttentionBias, name: str) -> int:
    size = getattr(bias, name, None)
    if size is None:
        raise ValueError(f"{type(bias).__name__} reads {', '.join(sorted(bias.needs))} but does not say its {name}")
    return size
