"""What the ways to extend a context do to each period."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ...encodings import RoPE
from ...scaling import NTK, Llama3, LongRoPE, PositionInterpolation, Scaling, YaRN
from .spectrum import rotary_freqs


def usual_scalings(
    factor: float, train_length: int, long_factors: Sequence[float] | None = None
) -> dict[str, Scaling | None]:
    """The scalings that extend a context of ``train_length`` by ``factor``, by name, with what their papers chose.

    Args:
        factor: Ratio of extension.
        train_length: Length before it.
        long_factors: Divisors of LongRoPE, which are searched for each model; left out without them.

    Example:
        >>> from mmpos.diagnostics import usual_scalings
        >>> list(usual_scalings(8, train_length=4096))
        ['as trained', 'PI', 'NTK', 'YaRN', 'Llama 3']
    """
    scalings: dict[str, Scaling | None] = {
        "as trained": None,
        "PI": PositionInterpolation(factor),
        "NTK": NTK(factor),
        "YaRN": YaRN(factor, train_length),
        "Llama 3": Llama3(factor, 1, 4, train_length),
    }
    if long_factors is not None:
        scalings["LongRoPE"] = LongRoPE([1.0] * len(long_factors), long_factors, train_length, factor)
    return scalings


def extended_periods(
    rope: RoPE, scalings: Mapping[str, Scaling | None], length: int
) -> dict[str, Float[Tensor, "h a p"]]:
    """Coordinate units per turn of each pair under each scaling, infinite where an axis does not turn a pair.

    Args:
        rope: The encoding; its own scaling gives way to each of these.
        scalings: Scalings by name.
        length: Of the rows, for scalings that depend on it.

    Example:
        >>> from mmpos.diagnostics import extended_periods
        >>> from mmpos.scaling import PositionInterpolation
        >>> extended_periods(RoPE(head_dim=4), {"PI": PositionInterpolation(2)}, length=8)["PI"]
        tensor([[[  12.5664, 1256.6371]]], dtype=torch.float64)
    """
    freqs = {name: rotary_freqs(rope.with_scaling(each), length=length) for name, each in scalings.items()}
    return {name: 2 * torch.pi / each.abs() for name, each in freqs.items()}
