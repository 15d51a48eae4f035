"""Checkpoints of tables that were learned for another grid."""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...resample import resample_table
from .cells import spell


def of_this_grid(
    table: nn.Module,
    size: tuple[int, ...],
    resize: bool,
    state_dict: Mapping[str, Any],
    prefix: str,
    error_msgs: list[str],
) -> Mapping[str, Any] | None:
    """The state to load into a module whose parameters are all tables ``(*size, dim)``, together one grid.

    Args:
        table: The module.
        size: Its grid.
        resize: Whether tables of another grid are resampled, with a warning; otherwise they are refused.
        state_dict: What is to be loaded, as ``_load_from_state_dict`` is given it.
        prefix: What stands before the names of the module's parameters there.
        error_msgs: Takes the reason for a refusal.

    Returns:
        ``state_dict`` or, where tables were resampled, a copy of it with those; None for a refusal.
    """
    own = dict(table.named_parameters(recurse=False))
    saved = {name: state_dict.get(prefix + name) for name in own}
    saved = {name: tensor for name, tensor in saved.items() if isinstance(tensor, Tensor)}
    if len(saved) < len(own) or all(tensor.shape == own[name].shape for name, tensor in saved.items()):
        return state_dict
    kind, where = type(table).__name__, prefix.removesuffix(".") or type(table).__name__
    for name, tensor in saved.items():
        old, new = tuple(tensor.shape), tuple(own[name].shape)
        flat = _is_flat(old, new)
        if flat or len(old) != len(new) or old[-1] != new[-1]:
            hint = "; if its rows are cells, row by row, mmpos.resample.split_pos_embed makes a table of them"
            error_msgs.append(
                f"{prefix}{name} of the checkpoint has shape {old}, this {kind} {new}{hint if flat else ''}"
            )
            return None
    old = tuple(side for tensor in saved.values() for side in tensor.shape[:-1])
    if not resize:
        dim = next(iter(own.values())).shape[-1]
        error_msgs.append(
            f"{where}: the checkpoint holds {spell(old)} positions, this {kind} {spell(size)}; load it into "
            f"{kind}({dim}, size={old}) and call .resize({', '.join(map(str, size))}) on that, or build this one with "
            "resize_on_load=True"
        )
        return None
    warnings.warn(
        f"{where}: resampled the {spell(old)} positions of the checkpoint to the {spell(size)} of this {kind}",
        stacklevel=2,
    )
    with torch.no_grad():
        new = {prefix + name: resample_table(tensor, own[name].shape[:-1]) for name, tensor in saved.items()}
    return {**state_dict, **new}


def _is_flat(old: tuple[int, ...], new: tuple[int, ...]) -> bool:
    """Whether a saved shape is ``(n, dim)`` or ``(1, n, dim)``, a list of cells, where a grid is wanted.

    ``(1, n, dim)`` may be a grid of one row too, but that is taken for one only where the wanted grid has one row.
    """
    if old[-1:] != new[-1:]:
        return False
    if len(old) == 2:
        return len(new) != 2
    return len(old) == 3 and old[0] == 1 and not (len(new) == 3 and new[0] == 1)
