"""What stands in a timm model for a slot that an encoding of ours fills."""

from collections.abc import Sequence
from functools import partial
from threading import local
from typing import Any, Protocol, Self, runtime_checkable

import torch
from jaxtyping import Int, Shaped
from timm.layers.patch_dropout import PatchDropout
from torch import Tensor, nn

from ...coords import grid_coords
from ...encodings.base import Encoding
from ..layers import check_no_replica, check_there, number_distinct
from .attention import NotingPatchDropout
from .parts import Parts, check_told_apart

SLOTS = ("mmpos_additive", "mmpos_rotary", "mmpos_bias")


@runtime_checkable
class Positions(Protocol):
    """How patches become coordinates, as `mmpos.models.GridPositions` has it."""

    def coords(
        self, rows: int, columns: int, *, training: bool = False, device: torch.device | None = None
    ) -> Shaped[Tensor, "n 2"]:
        """Coordinates of the patches, row by row."""
        ...


class Absent:
    """Stands for an attribute that a module does not have."""


class Scratch(local):
    """What one forward computes and its layers read, in its thread. It is neither copied nor saved with the model."""

    def __init__(self):
        self.coords: Tensor | None = None  # of the patches, as the encoding takes them
        self.cells: Tensor | None = None  # their cells in the grid
        self.results: list[Any] = []  # of the encodings, once for all layers

    def __reduce__(self):
        return Scratch, ()

    def place(self, encoding: Encoding) -> Tensor:
        """Where the patches are, as an encoding takes it."""
        place = self.cells if encoding.needs_cells else self.coords
        if place is None:
            raise RuntimeError("the model was called without its patch embedding, which tells the size of the image")
        return place


class Slot(nn.Module):
    """An encoding of ours in a timm model, until `undo`, or the end of a ``with`` statement, takes it out.

    It is a module of the model, so that what it learns is trained, moved and saved with that; ``name`` is where. Hooks
    tell it the grid of each forward, the patches that are kept, and when to compute. The model's own modules keep
    their names. What it takes out of the model is put back by `undo`.
    """

    name: str

    def __init__(self, parts: Parts, encodings: Sequence[Encoding | None], positions: Positions | None):
        super().__init__()
        self.encodings, self.layers = number_distinct(encodings)
        self.parts, self.positions, self.now = parts, positions, Scratch()
        self.num_prefix_tokens = parts.num_prefix_tokens
        self._hooks: list[Any] = []
        self._others: list[tuple[Any, str, Any]] = []

    def undo(self) -> None:
        """Takes the encoding out and puts back what it replaced, on the device and in the dtype of the model."""
        model = self.parts.model
        if getattr(model, self.name, None) is not self:
            raise ValueError(f"this {type(self).__name__} is not in the model any more")
        for hook in self._hooks:
            hook.remove()
        delattr(model, self.name)
        like = next(model.parameters())
        self.swap()
        for owner, name, _ in self._others:
            value = getattr(owner, name, None)
            if isinstance(value, nn.Module):
                value.to(like.device, like.dtype).train(model.training)
            elif isinstance(value, nn.Parameter):
                value.data = value.data.to(like.device, like.dtype)
        if not slots_of(model):
            vars(model).pop("no_weight_decay", None)
            if type(self.parts.patch_drop) is NotingPatchDropout:
                vars(self.parts.patch_drop).pop("kept", None)
                object.__setattr__(self.parts.patch_drop, "__class__", PatchDropout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if getattr(self.parts.model, self.name, None) is self:
            self.undo()

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that an optimiser should not decay."""
        names: set[str] = set()
        for number, encoding in enumerate(self.encodings):
            assert isinstance(encoding, Encoding)
            names |= {f"encodings.{number}.{name}" for name in encoding.no_weight_decay()}
        return names

    def swap(self) -> None:
        """Exchanges what the model has with what it had before; a second time undoes that."""
        for number, (owner, name, other) in enumerate(self._others):
            own = getattr(owner, name, Absent)
            if other is Absent:
                delattr(owner, name)
            else:
                setattr(owner, name, other)
            self._others[number] = owner, name, own

    def resize(self, rows: int, columns: int) -> None:
        """Brings the encodings to another grid."""
        for number, encoding in enumerate(self.encodings):
            assert isinstance(encoding, Encoding)
            self.encodings[number] = encoding.resize(rows, columns)

    def _set(self, owner: nn.Module, name: str, value: Any) -> None:
        """Plans a change of the model, which `_enter` makes."""
        self._others.append((owner, name, value))

    def _enter(self) -> None:
        """Goes into the model; all checks are behind us."""
        model = self.parts.model
        device = next((each.device for each in model.parameters()), None)
        self.to(device).train(model.training)
        self.swap()
        model.add_module(self.name, self)
        vars(model)["no_weight_decay"] = partial(_no_weight_decay, model)
        if type(self.parts.patch_drop) is PatchDropout:
            object.__setattr__(self.parts.patch_drop, "__class__", NotingPatchDropout)

    def _follow(self) -> None:
        """Follows each forward: the grid, the patches that are kept, and the blocks."""
        self._hooks += [
            self.parts.embed.register_forward_pre_hook(self._note_grid, with_kwargs=True),
            self.parts.gate.register_forward_pre_hook(self._evaluate),
            *(block.register_forward_pre_hook(self._carry) for block in self.parts.model.blocks),
        ]
        if self.parts.patch_drop is not None:
            self._hooks.append(self.parts.patch_drop.register_forward_hook(self._note_kept))

    def _refuse_replica(self, embed: nn.Module, args: tuple) -> None:
        check_no_replica(embed, self)

    def _note_grid(self, embed: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        self._refuse_replica(embed, args)
        images, cells = args[0], kwargs.get("patch_coord")
        if cells is None:
            rows, columns = embed.dynamic_feat_size(images.shape[-2:])
            if isinstance(rows, Tensor):  # as torch.jit.trace has sizes
                rows, columns = int(rows), int(columns)
            self.now.cells = grid_coords(rows, columns, device=images.device)
            self.now.coords = self._coords(rows, columns, self.now.cells)
            return
        self.now.cells = self.now.coords = cells.long()
        if self.positions is not None:  # a batch of NaFlex has a grid for each image
            sides = (cells.amax(dim=1) + 1).tolist()
            grids = [self._coords(rows, columns, cells) for rows, columns in sides]
            numbers = cells[..., 0].long() * cells.new_tensor(sides)[:, 1:] + cells[..., 1]
            self.now.coords = torch.stack([grid[row] for grid, row in zip(grids, numbers, strict=True)])

    def _coords(self, rows: int, columns: int, cells: Tensor) -> Tensor:
        """Coordinates of a grid, which are its cells unless told otherwise."""
        if self.positions is None:
            return cells
        return self.positions.coords(rows, columns, training=self.training, device=cells.device)

    def _note_kept(self, patch_drop: nn.Module, args: tuple, output: Any) -> None:
        kept = output[1] if isinstance(output, tuple) else getattr(patch_drop, "kept", None)
        if kept is not None:
            assert self.now.coords is not None
            assert self.now.cells is not None
            self.now.coords, self.now.cells = _pick(self.now.coords, kept), _pick(self.now.cells, kept)

    def _evaluate(self, gate: nn.Module, args: tuple) -> None:
        """Computes before the first block what all of them read."""
        self.now.results = [self.evaluate(encoding) for encoding in self.encodings]

    def evaluate(self, encoding: Any) -> Any:
        """What the layers read of an encoding, at the coordinates of this forward."""
        raise NotImplementedError

    def _carry(self, block: nn.Module, args: tuple) -> None:
        """Ties the results to the tokens of their forward.

        Gradient checkpointing computes a block again in the backward pass, when another forward may have come between.
        """
        if not torch.compiler.is_compiling() and torch.is_grad_enabled():
            self.now.results = vars(args[0]).setdefault(self.name, self.now.results)

    def _result(self, layer: int) -> Any:
        number = self.layers[layer]
        return None if number is None else self.now.results[number]


def slots_of(model: nn.Module) -> list[Slot]:
    """The slots of a model that encodings of ours fill."""
    found = [getattr(model, name, None) for name in SLOTS]
    return [slot for slot in found if isinstance(slot, Slot)]


def check_free(model: nn.Module, name: str) -> None:
    """Refuses to fill a slot twice."""
    if getattr(model, name, None) is not None:
        raise ValueError(
            f"{type(model).__name__} has an encoding of ours there already: call model.{name}.undo() first"
        )


def for_layers(kind: type, name: str, given: Any, parts: Parts) -> list[Any]:
    """One encoding, or None, for each layer, of one for all or a sequence."""
    if not parts.layers:
        raise ValueError(f"{type(parts.model).__name__} has no layers")
    check_told_apart(parts)
    layers = list(given) if isinstance(given, Sequence | nn.ModuleList) else [given] * len(parts.layers)
    if len(layers) != len(parts.layers):
        raise ValueError(f"{name} has {len(layers)} entries, but the model has {len(parts.layers)} layers")
    for each in layers:
        if not isinstance(each, kind | None):
            raise TypeError(f"{name} must be made of {kind.__name__}, one for all layers or one for each, got {each!r}")
    if all(each is None for each in layers):
        raise ValueError(f"{name} has an encoding for no layer")
    for each in layers:
        if isinstance(each, Encoding):
            check_patches(each, name, parts)
    return layers


def check_patches(encoding: Encoding, name: str, parts: Parts) -> None:
    """Refuses an encoding that is not one of patches, or has no data."""
    if encoding.axes != 2:
        raise ValueError(f"{name} must have 2 axes (y, x), got {encoding.axes}: {encoding}")
    check_there(encoding, parts.model, name)


def check_positions(positions: Any) -> None:
    """Refuses what does not make coordinates."""
    if positions is not None and (isinstance(positions, type) or not isinstance(positions, Positions)):
        raise TypeError(f"positions must be a GridPositions of mmpos.models, or have its coords(), got {positions!r}")


def corners(encoding: nn.Module, rows: int, columns: int) -> Int[Tensor, "2 2"]:
    """The first and the last cell of a grid, to try an encoding at."""
    device = next((each.device for each in encoding.parameters()), None)
    return torch.tensor([[0, 0], [rows - 1, columns - 1]], device=device)


def _pick(coords: Shaped[Tensor, "*batch n a"], kept: Int[Tensor, "b m"]) -> Shaped[Tensor, "b m a"]:
    return coords[kept] if coords.ndim == 2 else coords.take_along_dim(kept[..., None], dim=1)


def _no_weight_decay(model: Any) -> set[str]:
    """What timm's optimisers ask a model for, with the names of our parameters."""
    own = type(model).no_weight_decay(model)
    return set(own) | {f"{slot.name}.{name}" for slot in slots_of(model) for name in slot.no_weight_decay()}
