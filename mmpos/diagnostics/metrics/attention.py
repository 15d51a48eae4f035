"""What the attention of a model does, from its weights and logits."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor


def offsets(q_coords: Shaped[Tensor, "q a"], k_coords: Shaped[Tensor, "k a"], axis: int = 0) -> Float[Tensor, "q k"]:
    """How far each key lies behind each query on an axis; negative ahead of it."""
    return (q_coords[:, None, axis] - k_coords[None, :, axis]).double()


def distances(q_coords: Shaped[Tensor, "*b q a"], k_coords: Shaped[Tensor, "*b k a"]) -> Float[Tensor, "*b q k"]:
    """The Euclidean distance from each query to each key in coordinate units."""
    return (q_coords[..., :, None, :] - k_coords[..., None, :, :]).double().square().sum(-1).sqrt()


def by_distance(
    values: Float[Tensor, "*b h q k"], distances: Float[Tensor, "*#b q k"]
) -> tuple[Float[Tensor, " m"], Float[Tensor, "h m"]]:
    """The distances that there are, rising, and the mean of the values at each over all rows, queries and keys.

    Values that are -inf, logits of keys that are hidden, do not count; NaN where none does.

    Example:
        >>> from mmpos.diagnostics import bias_matrix, by_distance, offsets
        >>> coords = sequence_coords(3)
        >>> behind, mean = by_distance(bias_matrix(ALiBi(num_heads=8), coords, coords), offsets(coords, coords))
        >>> behind.tolist(), mean[0].tolist()
        ([-2.0, -1.0, 0.0, 1.0, 2.0], [-1.0, -0.5, 0.0, -0.5, -1.0])
    """
    known, place = distances.round(decimals=9).unique(return_inverse=True)
    values = values.double().movedim(-3, 0)
    counted = values != -torch.inf
    index = place.expand(values.shape[1:]).flatten()
    total, count = (
        torch.zeros(len(values), len(known), dtype=torch.float64, device=values.device).index_add(1, index, part)
        for part in (values.where(counted, 0).flatten(1), counted.double().flatten(1))
    )
    return known, total / count


def attention_distance(weights: Float[Tensor, "*b h q k"], distances: Float[Tensor, "*#b q k"]) -> Float[Tensor, " h"]:
    """How far each head looks: the mean distance of keys, by their weights, over queries and rows.

    Weights are normalised, so that prefix tokens may be cut off; queries without any weight do not count.

    Example:
        >>> from mmpos.diagnostics import attention_distance, distances
        >>> coords = sequence_coords(3)
        >>> attention_distance(torch.full((1, 2, 3, 3), 1 / 3), distances(coords, coords))
        tensor([0.8889, 0.8889], dtype=torch.float64)

    Reference:
        Dosovitskiy et al., An image is worth 16x16 words, 2020, sec. 4.5 and fig. 11.
        https://arxiv.org/abs/2010.11929
    """
    weights = weights.double()
    mass = weights.sum(-1)
    far = (weights * distances.unsqueeze(-3)).sum(-1) / mass
    return _mean_of_queries(far, mass > 0)


def attention_entropy(weights: Float[Tensor, "*b h q k"]) -> Float[Tensor, " h"]:
    """How spread each head's attention is: the mean entropy of its weights over queries and rows, in nats.

    ``log(k)`` where all keys weigh the same, 0 where one has all the weight.

    Example:
        >>> from mmpos.diagnostics import attention_entropy
        >>> attention_entropy(torch.full((1, 2, 3, 4), 1 / 4)).exp()
        tensor([4., 4.], dtype=torch.float64)
    """
    weights = weights.double()
    mass = weights.sum(-1, keepdim=True)
    entropy = torch.special.entr(weights / mass).sum(-1)
    return _mean_of_queries(entropy, mass.squeeze(-1) > 0)


def _mean_of_queries(values: Float[Tensor, "*b h q"], counted: Shaped[Tensor, "*b h q"]) -> Float[Tensor, " h"]:
    values = values.where(counted, 0).movedim(-2, 0).flatten(1)
    return values.sum(-1) / counted.movedim(-2, 0).flatten(1).sum(-1)
