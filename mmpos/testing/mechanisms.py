"""Points about what all encodings of a kind have in common: rotations, and the lowerings of a bias."""

import torch
from torch import Tensor

from ..encodings import AttentionBias, Rotation
from .subject import FEW, MANY, MORE, SOME, DoesNotApply, Subject, expect, expect_same, rotation_parts

HALF, SINGLE, DOUBLE = (torch.float16, torch.bfloat16), torch.float32, torch.float64


def unit_rotation(subject: Subject) -> None:
    """Every pair keeps its norm; with a scaling, which may bring an attention factor, all tokens change it alike."""
    subject.only_for("rotary")
    cos, sin = subject.rotation(subject.coords(MANY))[:2]
    norm = (cos.double().square() + sin.double().square()).sqrt()
    scaled = getattr(subject.encoding, "scaling", None) is not None
    want = norm[..., :1, :].expand_as(norm) if scaled else torch.ones_like(norm)
    expect_same({"result": norm}, {"result": want}, "sqrt(cos^2 + sin^2)", 1e-6)


def relative_rotation(subject: Subject) -> None:
    """Logits depend on differences of coordinates only."""
    subject.only_for("rotary")
    subject.only_without_limits()
    q_coords, k_coords = _near(subject, SOME), _near(subject, FEW, seed=1)
    logits = {}
    for shift in (0, 300):
        q_rotation, k_rotation = subject.rotation(q_coords + shift), subject.rotation(k_coords + shift)
        q, k = (_content(part, DOUBLE, seed) for seed, part in enumerate((q_rotation, k_rotation)))
        logits[shift] = q_rotation.apply(q, role="query") @ k_rotation.apply(k, role="key").mT
    expect_same({"result": logits[300]}, {"result": logits[0]}, "logits after a shift of all coordinates", 1e-5)


def applying(subject: Subject) -> None:
    """A rotation returns queries and keys in their dtype, passes other channels through and leaves its input alone."""
    subject.only_for("rotary")
    rotation = subject.rotation(_near(subject, SOME, (2,)))
    pairs = rotation.cos.shape[-1]
    for dtype in (*HALF, SINGLE, DOUBLE):
        x = _content(rotation, dtype)
        before = x.clone()
        y = rotation.apply(x, role="query")
        expect((y.dtype, y.shape) == (x.dtype, x.shape), f"expected {x.dtype} of shape {tuple(x.shape)}, "
               f"got {y.dtype} of shape {tuple(y.shape)}")  # fmt: skip
        expect_same({"x": x}, {"x": before}, "x after apply")
        rest = slice(2 * pairs, None)
        expect_same({"x": y[..., rest]}, {"x": x[..., rest]}, "channels that no pair turns")


def inverse_rotation(subject: Subject) -> None:
    """The inverse of a rotation turns back."""
    subject.only_for("rotary")
    rotation = subject.rotation(_near(subject, SOME, (2,)))
    x = _content(rotation, DOUBLE)
    for role in ("query", "key"):
        back = rotation.inverse().apply(rotation.apply(x, role=role), role=role)
        expect_same({"x": back}, {"x": x}, f"{role} after rotation and its inverse", 1e-5)


def prefix_rotation(subject: Subject) -> None:
    """Tokens that `with_prefix` puts in front turn as at coordinate 0."""
    subject.only_for("rotary")
    subject.only_without_limits()
    coords = subject.coords(SOME, (2,))
    prefixed = torch.cat([torch.zeros_like(coords[:, :3]), coords], dim=1)
    got, want = subject.rotation(coords).with_prefix(3), subject.rotation(prefixed)
    expect_same(rotation_parts(got), rotation_parts(want), "with_prefix(3)", 1e-6)


def masked_rotation(subject: Subject) -> None:
    """Tokens that `where` leaves out turn as at coordinate 0."""
    subject.only_for("rotary")
    subject.only_without_limits()
    coords = subject.coords(SOME, (2,))
    positioned = torch.arange(2 * SOME, device=coords.device).view(2, SOME) % 3 != 0
    got, want = subject.rotation(coords).where(positioned), subject.rotation(coords.where(positioned[..., None], 0))
    expect_same(rotation_parts(got), rotation_parts(want), "where(positioned)", 1e-6)


def score(subject: Subject) -> None:
    """The entries that `score` gives are those of the dense bias."""
    subject.only_for("bias")
    encoding = subject.fresh()
    assert isinstance(encoding, AttentionBias)
    if type(encoding).score is AttentionBias.score:
        raise DoesNotApply("it has no score")
    # As fused kernels call it: on single entries, vectorised over keys, queries and heads.
    every = torch.vmap(torch.vmap(torch.vmap(encoding.score, (None, None, 0)), (None, 0, None)), (0, None, None))
    for what, inputs in _lowering_inputs(subject):
        dense = subject.call(encoding, inputs)["result"]
        heads = torch.arange(dense.shape[-3], device=dense.device)
        got = every(heads, inputs["q_coords"], inputs["k_coords"])
        expect_same({"result": got}, {"result": dense}, f"score at {what} coordinates, against forward", 1e-5)


def factors(subject: Subject) -> None:
    """The inner products of `factors` are the dense bias, up to a number for each query."""
    subject.only_for("bias")
    encoding = subject.fresh()
    assert isinstance(encoding, AttentionBias)
    if type(encoding).factors is AttentionBias.factors:
        raise DoesNotApply("it has no factors")
    found = False
    for rows in ((), (2,)):
        for what, inputs in _lowering_inputs(subject, rows):
            parts = encoding.factors(**inputs)
            if parts is not None:
                found = True
                dense = subject.call(encoding, inputs)["result"]
                _check_factors(parts, dense, torch.ones_like(dense, dtype=torch.bool), f"at {what} coordinates")
    if subject.example is None:  # keys that do not lie past the query on any axis
        coords = torch.arange(SOME)[:, None].expand(SOME, encoding.axes)
        inputs = subject.inputs(SOME, SOME) | {"q_coords": coords, "k_coords": coords}
        parts = encoding.factors(**inputs, ordered=True)
        if parts is not None:
            found = True
            dense = subject.call(encoding, inputs)["result"]
            _check_factors(parts, dense, torch.ones_like(dense, dtype=torch.bool).tril(), "for ordered coordinates")
    if not found:
        raise DoesNotApply("it has no factors at these coordinates")


def _check_factors(parts: tuple[Tensor, Tensor], dense: Tensor, seen: Tensor, where: str) -> None:
    left, right = parts
    got, dense = left.double() @ right.double().mT, dense.double()
    compared = seen & got.isfinite() & dense.isfinite()
    counts = compared.sum(-1, keepdim=True).clamp(min=1)
    own = (got - dense).where(compared, 0).sum(-1, keepdim=True) / counts  # each query's number
    got, dense = ((part - shift).masked_fill(~seen, 0) for part, shift in ((got, own), (dense, 0.0)))
    expect_same({"result": got}, {"result": dense}, f"factors {where}, against forward", 1e-5)


def _lowering_inputs(subject: Subject, rows: tuple[int, ...] = ()):
    yield "integer", subject.inputs(MANY, MORE, rows)
    inputs = subject.inputs(SOME, FEW, rows, floats=True)
    yield "real", inputs
    inputs = {name: value.clone() if name in subject.token_axes else value for name, value in inputs.items()}
    inputs["q_coords"][..., 1, 0], inputs["k_coords"][..., 2, -1] = torch.nan, torch.inf
    yield "NaN and infinite", inputs


def _near(subject: Subject, n: int, rows: tuple[int, ...] = (), seed: int = 0) -> torch.Tensor:
    """Coordinates below 100, where the factors of xPos, which grow with distance, are of the size of 1."""
    coords = subject.coords(n, rows, seed=seed)
    return coords % 100 if subject.example is None else coords


def _content(rotation: Rotation, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Queries or keys that fit, with channels that no pair turns."""
    *rows, pairs = rotation.cos.shape
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*rows, 2 * pairs + 3, generator=generator, dtype=torch.float64)
    return x.to(rotation.cos.device, dtype)
