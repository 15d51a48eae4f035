"""The rotation property in numbers: a shift of all positions turns pairs of channels and leaves logits as they are."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from ...encodings import AdditiveEncoding, RotaryEncoding
from .spectrum import Wave, additive_waves


def rotation_gap(
    additive: AdditiveEncoding,
    coords: Shaped[Tensor, "n a"],
    shift: float | Sequence[float],
    *,
    length: int | None = None,
    waves: Sequence[Wave] | None = None,
) -> Float[Tensor, " p"]:
    """How far ``PE(coords + shift)`` is from ``PE(coords)`` turned by ``shift . freqs``, for each sine and its cosine.

    The largest difference over all tokens and both channels, in the order of `additive_waves`.

    Args:
        additive: The encoding.
        coords: Positions.
        shift: Coordinate units, for all axes or for each.
        length: For encodings that depend on it.
        waves: Where `additive_waves` has found them already.

    Example:
        >>> from mmpos.diagnostics import rotation_gap
        >>> rotation_gap(Sinusoidal(dim=8), sequence_coords(50), shift=7) < 1e-5
        tensor([True, True, True, True])
    """
    step = torch.as_tensor(shift, dtype=torch.float64, device=coords.device).expand(additive.axes)
    before, after = (additive(where, length=length).double() for where in (coords, coords + _like(step, coords)))
    gaps = []
    for freqs, channels in additive_waves(additive, length=length) if waves is None else waves:
        if len(channels) == 2:
            sine, cosine = before[:, channels[0]], before[:, channels[1]]
            angle = (step * step.new_tensor(freqs)).sum()
            turned = torch.stack(
                [sine * angle.cos() + cosine * angle.sin(), cosine * angle.cos() - sine * angle.sin()], dim=-1
            )
            gaps.append((after[:, list(channels)] - turned).abs().max())
    return torch.stack(gaps) if gaps else step.new_zeros(0)


def shift_gap(
    rotary: RotaryEncoding,
    coords: Shaped[Tensor, "n a"],
    shift: float | Sequence[float],
    *,
    length: int | None = None,
    seed: int = 0,
) -> Float[Tensor, " h"]:
    """The largest change of logits ``q . k / sqrt(d)`` when all tokens move by ``shift``, in each head.

    Queries and keys are normal random vectors of the channels that turn, multiplied in float64.

    Args:
        rotary: The encoding.
        coords: Positions.
        shift: Coordinate units, for all axes or for each.
        length: For encodings that depend on it.
        seed: Of the random vectors.

    Example:
        >>> from mmpos.diagnostics import shift_gap
        >>> bool(shift_gap(RoPE(head_dim=64, axes=2), grid_coords(height=5, width=7), shift=(1000, 30)) < 1e-5)
        True
    """
    step = torch.as_tensor(shift, dtype=torch.float64, device=coords.device).expand(rotary.axes)
    rotations = [rotary(where, length=length) for where in (coords, coords + _like(step, coords))]
    heads, tokens, pairs = rotations[0].cos.shape[-3:]
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, heads, tokens, 2 * pairs, generator=generator, dtype=torch.float64).to(coords.device)
    before, after = (each.apply(q, "query") @ each.apply(k, "key").mT for each in rotations)
    return (after - before).abs().amax((-2, -1)).detach() * (2 * pairs) ** -0.5


def turned(
    encoding: AdditiveEncoding | RotaryEncoding,
    x: Float[Tensor, " d"],
    coords: Shaped[Tensor, "n a"],
    *,
    length: int | None = None,
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """What positions make of one vector: its length over that of ``x``, and the angle between the two in degrees.

    Args:
        encoding: Adds to ``x``, or turns it as the first head's query.
        x: The vector.
        coords: Positions.
        length: For encodings that depend on it.

    Example:
        >>> from mmpos.diagnostics import turned
        >>> share, degrees = turned(RoPE(head_dim=2), torch.tensor([3.0, 4.0]), torch.tensor([[0], [1]]))
        >>> share.round(decimals=4).tolist(), degrees.round(decimals=2).tolist()
        ([1.0, 1.0], [0.0, 57.3])
    """
    x = x.double()
    if isinstance(encoding, RotaryEncoding):
        rotation = encoding(coords, length=length)
        heads = rotation.cos.shape[-3]
        moved = rotation.apply(x.expand(heads, len(coords), -1), "query")[0]
    else:
        moved = x + encoding(coords, length=length).double()
    sizes = moved.norm(dim=-1, keepdim=True)
    new, old = moved / sizes, x / x.norm()
    angle = 2 * torch.atan2((new - old).norm(dim=-1), (new + old).norm(dim=-1))  # exact for small angles too
    return (sizes.squeeze(-1) / x.norm()).detach(), angle.rad2deg().detach()


def _like(step: Tensor, coords: Tensor) -> Tensor:
    """Whole steps of integer coordinates stay integers, whose phases are exact."""
    whole = not coords.is_floating_point() and bool((step == step.round()).all())
    return step.to(coords.dtype) if whole else step
