"""Checkpoints that say what they do not fit."""

import re
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import nn


def check_checkpoint_path(
    path: str | None, *, required: bool = False, name: str = "ckpt_path", shards: bool = False
) -> None:
    """Refuses a path that leads to no checkpoint, before a model is built for it.

    Args:
        path: A file, or a folder of the shards that processes saved.
        required: Whether there must be one.
        name: The argument, for the error.
        shards: Whether a folder will do.

    Raises:
        ValueError: If there is no path but must be one, its file is no checkpoint, or it is a folder and must not be.
        FileNotFoundError: If there is no such file.
    """
    if path is None:
        if required:
            raise ValueError(f"{name} is missing; give a checkpoint: --{name} runs/.../checkpoints/best.ckpt")
    elif "://" not in path:  # what lies elsewhere is for Lightning to find
        if not Path(path).exists():
            raise FileNotFoundError(f"{name} {path} does not exist")
        if Path(path).is_dir() and not shards:
            raise ValueError(
                f"{name} {path} is in shards, which configs/trainer/fsdp.yaml reads for --ckpt_path; "
                f"python -m lightning.fabric.utilities.consolidate_checkpoint {path} makes one file of them"
            )
        if Path(path).is_file() and not zipfile.is_zipfile(path):
            raise ValueError(f"{name} {path} is not a checkpoint")


def load_weights(module: nn.Module, path: str) -> None:
    """Starts a model from the weights of a checkpoint, and nothing else of it.

    What learns nothing may differ: the scaling of a rotary encoding, the recipe of training.

    Raises:
        ValueError: If the weights do not fit the model; the message says which.
    """
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise ValueError(f"weights {path}: {explain_unpickling(error)}") from error
    if not isinstance(checkpoint, Mapping) or "state_dict" not in checkpoint:
        raise ValueError(f"weights {path} is no checkpoint of a training run")
    try:
        module.load_state_dict(checkpoint["state_dict"])
    except RuntimeError as error:
        reasons = [line.strip() for line in str(error).splitlines()[1:]]
        raise ValueError(f"weights {path} are of another model: {' '.join(reasons)}") from None


def explain_unpickling(error: UnpicklingError) -> str:
    """One line on a checkpoint that holds more than tensors and plain values."""
    found = re.search(
        r"Unsupported (?:global|class|operand|operation)\S*:? ?(?:GLOBAL )?(\S+)|GLOBAL (\S+)", str(error)
    )
    what = f" ({found[1] or found[2]})" if found else ""
    return f"the file holds more than tensors and plain values{what}, which may be a program, and is not loaded"


def check_same_model(checkpoint: Mapping[str, Any], hparams: Mapping[str, Any], *, free: Collection[str] = ()) -> None:
    """Refuses a checkpoint whose hyper-parameters describe another model than ``hparams``.

    Args:
        checkpoint: As Lightning loads it.
        hparams: Hyper-parameters of the module at hand.
        free: Names that belong to the training recipe and may differ.

    Raises:
        ValueError: If the checkpoint has none, or some differ; the message holds both values of each that does.
    """
    stored = checkpoint.get("hyper_parameters")
    if stored is None:
        raise ValueError("the checkpoint has no hyper_parameters, so it cannot be told to fit this model")
    differences = [
        f"{name} is {value!r} in the checkpoint but {hparams.get(name, 'unknown')!r} here"
        for name, value in stored.items()
        if name not in free and (name not in hparams or _plain(value) != _plain(hparams[name]))
    ]
    if differences:
        raise ValueError(f"the checkpoint is of another model: {'; '.join(differences)}")


def _plain(value: Any) -> Any:
    """The value with its tuples as lists, for YAML has no tuples."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
