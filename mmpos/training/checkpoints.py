"""Checkpoints that say what they do not fit."""

import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any


def check_checkpoint_path(path: str | None, *, required: bool) -> None:
    """Refuses a path that leads to no checkpoint, before a model is built for it.

    Raises:
        ValueError: If there is no path but must be one, or its file is no checkpoint.
        FileNotFoundError: If there is no such file.
    """
    if path is None:
        if required:
            raise ValueError("ckpt_path is missing; give a checkpoint: --ckpt_path runs/.../checkpoints/best.ckpt")
    elif "://" not in path:  # what lies elsewhere is for Lightning to find
        if not Path(path).exists():
            raise FileNotFoundError(f"ckpt_path {path} does not exist")
        if Path(path).is_file() and not zipfile.is_zipfile(path):
            raise ValueError(f"ckpt_path {path} is not a checkpoint")


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
