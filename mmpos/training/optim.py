"""The optimiser and its schedule, for every LightningModule."""

import math
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import nn

from ..models.blocks import no_weight_decay_names


def split_by_decay(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups of an optimiser: matrices decay; vectors and what ``no_weight_decay()`` names do not."""
    spared = no_weight_decay_names(model)
    decayed, plain = [], []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            (plain if parameter.ndim < 2 or name in spared else decayed).append(parameter)
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]


def cosine_with_warmup(step: int, *, total: int, warmup: float) -> float:
    """Share of the peak learning rate: rises linearly over the share ``warmup`` of all steps, then falls to 0."""
    rise = max(round(warmup * total), 1)
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * min((step - rise) / max(total - rise, 1), 1.0)))


def adamw_cosine(
    module: LightningModule, *, lr: float, weight_decay: float, warmup: float, beta2: float = 0.999
) -> OptimizerLRSchedulerConfig:
    """What ``configure_optimizers`` returns for AdamW under a cosine schedule with warm-up.

    Args:
        module: The module itself, never a wrapper around it, whose parameters have other names.
        lr: Peak learning rate.
        weight_decay: Decay of matrices.
        warmup: Share of all steps in which the learning rate rises.
        beta2: Memory of AdamW for the size of gradients.
    """
    total = module.trainer.estimated_stepping_batches
    if math.isinf(total):
        raise ValueError("the cosine schedule needs an end: set trainer.max_epochs or trainer.max_steps")
    optimizer = torch.optim.AdamW(split_by_decay(module, weight_decay), lr=lr, betas=(0.9, beta2))
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, partial(cosine_with_warmup, total=int(total), warmup=warmup)
    )
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}
