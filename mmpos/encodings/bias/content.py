"""What biases take from queries, keys and tokens, and how: in float32 at least, whatever autocast would do."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from jaxtyping import Float
from torch import Tensor

from ...arguments import check_tensor


def check_content(owner: str, name: str, content: Tensor | None, sizes: Mapping[str, int]) -> Tensor:
    """Refuses content that is missing or does not fit.

    Args:
        owner: The class that reads it, for errors.
        name: The argument, for errors.
        content: What was given.
        sizes: What its last axes count, and how much of it.

    Raises:
        ValueError: If there is none, or its last axes have other sizes.
        TypeError: If it is not real floating point.
    """
    if content is None:
        raise ValueError(f"{owner} reads {name}, (..., {_listed(sizes)}), but got none")
    check_tensor(name, content)
    if not content.is_floating_point():
        raise TypeError(f"{name} must be real floating point, got {content.dtype}")
    found = content.shape[-len(sizes) :]
    if len(found) != len(sizes) or any(own != size for own, size in zip(found, sizes.values(), strict=True)):
        raise ValueError(f"{name} must be (..., {_listed(sizes)}), got shape {tuple(content.shape)}")
    return content


def _listed(sizes: Mapping[str, int]) -> str:
    """Only for errors: compiled code would be made for the sizes that stand in a text."""
    return ", ".join(f"{size} {what}" for what, size in sizes.items())


def inner_products(
    left: Float[Tensor, "*#batch #h m d"], right: Float[Tensor, "*#batch #h n d"]
) -> Float[Tensor, "*batch h m n"]:
    """Every row of ``left`` with every row of ``right``, in float32 or in float64 where one of them is."""
    dtype = torch.promote_types(torch.promote_types(left.dtype, right.dtype), torch.float32)
    with _no_autocast(left.device):
        return left.to(dtype) @ right.to(dtype).mT


def _no_autocast(device: torch.device) -> AbstractContextManager:
    """Leaves float32 alone; the meta device has no autocast to switch off."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)
