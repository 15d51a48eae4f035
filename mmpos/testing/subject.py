"""The encoding under test, inputs that fit it, and comparisons that say what was expected and what was got."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from ..encodings import AttentionBias, Rotation
from ..factory import INTERFACES, Kind

Inputs = dict[str, Any]
Outputs = dict[str, Tensor]

# The coordinates that a kind takes, and the axis of its results on which their tokens stand.
TOKEN_AXES: dict[str, dict[str, int]] = {
    "additive": {"coords": -2},
    "rotary": {"coords": -2},
    "bias": {"q_coords": -2, "k_coords": -1},
    "scale": {"q_coords": -1},
}

# Sizes that differ from each other and from the usual widths and heads, so that no axis passes for another.
MANY, MORE, SOME, FEW = 301, 269, 23, 7
SPAN = 5000  # coordinates reach past 256 and 2048, where half precision loses count
LENGTH = 8192  # past all of them


class Violation(AssertionError):
    """A point that an encoding fails."""


class DoesNotApply(Exception):
    """A point that says nothing about this encoding."""


class Subject:
    """An encoding under test. The module itself is never called, only copies of it.

    Args:
        encoding: An instance of one of the four interfaces.

    Raises:
        TypeError: If it is none, or does not say the number of its ``axes``.
    """

    def __init__(self, encoding: nn.Module):
        kinds = [kind for kind, interface in INTERFACES.items() if isinstance(encoding, interface)]
        if not kinds:
            names = ", ".join(interface.__name__ for interface in INTERFACES.values())
            raise TypeError(f"encoding must be a built {names}, got {encoding!r}")
        axes = getattr(encoding, "axes", None)
        if isinstance(axes, bool) or not isinstance(axes, int) or axes < 1:
            raise TypeError(f"{type(encoding).__name__} must say its number of axes, a positive integer, got {axes!r}")
        self.encoding, self.kind, self.axes = encoding, kinds[0], axes
        self.token_axes = TOKEN_AXES[self.kind]
        self.fixed = not list(encoding.parameters())
        self.device = next((parameter.device for parameter in encoding.parameters()), torch.device("cpu"))
        self.example = getattr(encoding, "example_coords", None)

    def fresh(self) -> nn.Module:
        """A copy that shares nothing with the encoding."""
        return copy.deepcopy(self.encoding)

    def only_for(self, kind: Kind) -> None:
        """Leaves a point that is about another kind."""
        if self.kind != kind:
            raise DoesNotApply(f"for {INTERFACES[kind].__name__} only")

    def only_without_limits(self) -> None:
        """Leaves a point whose coordinates the encoding may not hold."""
        if self.example is not None:
            raise DoesNotApply("its range is limited: it has example_coords")

    def coords(self, n: int, rows: tuple[int, ...] = (), *, seed: int = 0) -> Shaped[Tensor, "*rows n a"]:
        """Coordinates of ``n`` tokens in no order, other ones for each row and seed."""
        generator = torch.Generator().manual_seed(seed)
        if self.example is None:
            coords = torch.randint(SPAN, (*rows, n, self.axes), generator=generator)
            return coords.to(self.device)
        known = self.example(max(MANY, n))
        return known[torch.randint(len(known), (*rows, n), generator=generator)].to(self.device)

    def float_coords(
        self, n: int, rows: tuple[int, ...] = (), *, seed: int = 0, span: float = SPAN
    ) -> Float[Tensor, "*rows n a"]:
        """Coordinates between integers, less than ``span`` where the range is not limited."""
        generator = torch.Generator().manual_seed(seed + 1000)
        share = torch.rand(*rows, n, self.axes, generator=generator, dtype=torch.float64).to(self.device)
        if self.example is None:
            return share * span
        known = self.example(MANY).double().to(self.device)
        low, high = known.amin(0), known.amax(0)
        return low + (high - low) * (0.02 + 0.96 * share)

    def inputs(
        self,
        n: int = SOME,
        m: int = FEW,
        rows: tuple[int, ...] = (),
        *,
        floats: bool = False,
        seed: int = 0,
        span: float = SPAN,
    ) -> Inputs:
        """Arguments of a call with ``n`` tokens, for a bias ``n`` queries and ``m`` keys.

        The length is pinned, as compiled calls need it.
        """
        inputs: Inputs = {}
        for offset, (name, size) in enumerate(zip(self.token_axes, (n, m), strict=False)):
            if floats:
                inputs[name] = self.float_coords(size, rows, seed=seed + 10 * offset, span=span)
            else:
                inputs[name] = self.coords(size, rows, seed=seed + 10 * offset)
        if self.kind in ("additive", "rotary"):
            inputs["length"] = LENGTH
        if self.kind == "bias":
            inputs |= self._content(n, m, rows, seed)
        if self.kind == "scale":
            inputs["visible"] = 1 + (torch.arange(n, device=self.device) * 7 % 31).expand(*rows, n)
        return inputs

    def _content(self, n: int, m: int, rows: tuple[int, ...], seed: int) -> Inputs:
        """What a bias needs besides coordinates; it says the sizes as attributes."""
        assert isinstance(self.encoding, AttentionBias)
        needs = self.encoding.needs
        shapes = {}
        if "query" in needs:
            shapes["query"] = (*rows, self._size("num_heads"), n, self._size("head_dim"))
        if "key" in needs:
            groups = getattr(self.encoding, "num_kv_heads", None) or self._size("num_heads")
            shapes["key"] = (*rows, groups, m, self._size("head_dim"))
        if "tokens" in needs:
            shapes["tokens"] = (*rows, n, self._size("dim"))
        if set(needs) != set(shapes):
            raise Violation(f"expected needs to be of query, key and tokens, got {sorted(needs)}")
        generator = torch.Generator().manual_seed(seed + 2000)
        return {name: torch.randn(shape, generator=generator).to(self.device) for name, shape in shapes.items()}

    def _size(self, name: str) -> int:
        size = getattr(self.encoding, name, None)
        if size is None:
            raise Violation(f"expected an attribute {name}, for the content that it needs, got none")
        return size

    def call(self, encoding: Callable[..., Any], inputs: Inputs) -> Outputs:
        """The tensors that a call with copies of the arguments gives, by name."""
        copies = {name: value.clone() if isinstance(value, Tensor) else value for name, value in inputs.items()}
        return self.call_in_place(encoding, copies)

    def call_in_place(self, encoding: Callable[..., Any], inputs: Inputs) -> Outputs:
        """The tensors that a call with the very arguments gives."""
        coords = [inputs[name] for name in self.token_axes]
        rest = {name: value for name, value in inputs.items() if name not in self.token_axes}
        result = encoding(*coords, **rest)
        if self.kind != "rotary":
            expect(isinstance(result, Tensor), f"expected a tensor, got {type(result).__name__}")
            return {"result": result}
        expect(isinstance(result, Rotation), f"expected a Rotation, got {type(result).__name__}")
        return rotation_parts(result)

    def rotation(self, coords: Tensor) -> Rotation:
        """The rotation of a copy of the encoding."""
        rotation = self.fresh()(coords, length=LENGTH)
        expect(isinstance(rotation, Rotation), f"expected a Rotation, got {type(rotation).__name__}")
        return rotation


def rotation_parts(rotation: Rotation) -> Outputs:
    """The tensors of a rotation by name."""
    parts = {"cos": rotation.cos, "sin": rotation.sin, "scale": rotation.scale}
    return {name: part for name, part in parts.items() if part is not None}


def at_row(inputs: Mapping[str, Any], row: int) -> Inputs:
    """The arguments of one row of a batch."""
    return {name: value[row] if isinstance(value, Tensor) else value for name, value in inputs.items()}


def expect(condition: bool, message: str) -> None:
    """Fails the point with the message, which says what was expected and what was got."""
    if not condition:
        raise Violation(message)


def expect_same(got: Outputs, want: Outputs, what: str, tolerance: float = 0.0) -> None:
    """Fails the point unless all tensors agree: to the bit, or within a share of the largest entry.

    NaN is the same as NaN, and the dtype does not matter.
    """
    expect(got.keys() == want.keys(), f"{what}: expected {', '.join(want)}, got {', '.join(got)}")
    for name, wanted in want.items():
        actual, label = got[name].detach().double(), "" if name == "result" else f" of {name}"
        wanted = wanted.detach().double().to(actual.device)
        expect(
            actual.shape == wanted.shape,
            f"{what}: expected shape {tuple(wanted.shape)}{label}, got {tuple(actual.shape)}",
        )
        if not actual.numel():
            continue
        expect(
            torch.equal(actual.isnan(), wanted.isnan()),
            f"{what}: expected NaN in {int(wanted.isnan().sum())} entries{label}, got {int(actual.isnan().sum())}, "
            "or in others",
        )
        gap = (actual - wanted).abs().masked_fill(actual == wanted, 0).nan_to_num(0, posinf=torch.inf).max().item()
        allowed = tolerance * wanted.abs().nan_to_num(0, 0, 0).max().item()
        bound = f"at most {allowed:.1e} apart" if tolerance else "the same bits"
        expect(gap <= allowed, f"{what}: expected {bound}{label}, got {gap:.1e}")
