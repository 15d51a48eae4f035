"""Points about gradients: to learned parameters, to real coordinates and to the content that a bias reads."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..encodings import AttentionBias
from .subject import FEW, SOME, DoesNotApply, Inputs, Subject, Violation, expect, expect_same

# Results are float32, so a short step drowns in rounding and a long one in curvature: the best of several counts.
STEPS = (1e-4, 3e-4, 1e-3, 1e-2)
TOLERANCE = 2e-2
NOWHERE = 1e-7  # a step that moves results by their rounding only


def parameter_gradients(subject: Subject) -> None:
    """Every learned parameter gets the gradient that finite differences show."""
    learned = [name for name, parameter in subject.encoding.named_parameters() if parameter.requires_grad]
    if not learned:
        raise DoesNotApply("it learns nothing")
    for name in learned:
        encoding = subject.fresh()
        try:
            _check_parameter(subject, encoding, name)
        except Violation:
            # Something that starts at zero may keep others from learning in the first step, or stand where slopes jump.
            encoding = subject.fresh()
            _perturb(encoding)
            _check_parameter(subject, encoding, name)


def input_gradients(subject: Subject) -> None:
    """Real coordinates, and queries, keys and tokens, get the gradient that finite differences show."""
    for name, start in _inputs(subject).items():
        if isinstance(start, Tensor) and start.is_floating_point():
            try:
                _check_input(subject, name, seed=0)
            except Violation:  # slopes may jump within the steps, though hardly at other inputs as well
                _check_input(subject, name, seed=2)


def inference_first(subject: Subject) -> None:
    """A module that was called in inference mode first trains afterwards, and gives the same bits."""
    encoding = subject.fresh()
    for inputs in (subject.inputs(), subject.inputs(floats=True)):
        with torch.inference_mode():
            first = subject.call(encoding, inputs)
        results = subject.call(encoding, inputs)
        expect_same(results, first, "training after inference mode")
        total = torch.zeros((), device=subject.device)
        for name, result in results.items():
            expect(not result.is_inference(), f"expected a {name} that autograd may save, got an inference tensor")
            total = total + (torch.ones_like(result, requires_grad=True) * result).sum()
        total.backward()


def _check_input(subject: Subject, name: str, seed: int) -> None:
    encoding, inputs = subject.fresh(), _inputs(subject, seed)
    start = inputs[name]
    leaf = start.clone().requires_grad_()
    total = _weighted_sum(subject, encoding, inputs | {name: leaf})
    gradient = torch.autograd.grad(total, leaf, allow_unused=True)[0] if total.requires_grad else None
    # Steps of a share of the way to another place stay in the range of an encoding that has one.
    other = _inputs(subject, seed + 1)[name]

    def value(moved: Tensor) -> Tensor:
        with torch.no_grad():
            return _weighted_sum(subject, encoding, inputs | {name: moved})

    if gradient is None or not gradient.any():
        _check_flat(subject, encoding, inputs, name, other)
    else:
        _check_slope(value, start, gradient, (other - start).abs(), name)


def _inputs(subject: Subject, seed: int = 0) -> Inputs:
    return subject.inputs(SOME, FEW, floats=True, seed=seed, span=8.0)


def _weighted_sum(subject: Subject, encoding: nn.Module, inputs: Inputs) -> Tensor:
    """One number that depends on every entry of the results, summed in float64."""
    generator = torch.Generator().manual_seed(7)
    total = torch.zeros((), dtype=torch.float64, device=subject.device)
    results = list(subject.call(encoding, inputs).values())
    prefix = encoding.prefix_bias() if isinstance(encoding, AttentionBias) else None
    for result in results if prefix is None else [*results, prefix]:
        weight = torch.randn(result.shape, generator=generator, dtype=torch.float64).to(result.device)
        total = total + (result.double() * weight).sum()
    return total


def _parameter_gradient(subject: Subject, encoding: nn.Module, name: str) -> Tensor:
    parameter = encoding.get_parameter(name)
    total = _weighted_sum(subject, encoding, _inputs(subject))
    gradient = torch.autograd.grad(total, parameter, allow_unused=True)[0] if total.requires_grad else None
    return torch.zeros_like(parameter) if gradient is None else gradient


def _check_parameter(subject: Subject, encoding: nn.Module, name: str) -> None:
    gradient = _parameter_gradient(subject, encoding, name)
    expect(bool(gradient.any()), f"expected a gradient to {name}, got none")
    start = encoding.get_parameter(name).detach().clone()
    scale = start.square().mean().sqrt().clamp_min(0.02)

    def value(parameter: Tensor) -> Tensor:
        with torch.no_grad():
            encoding.get_parameter(name).copy_(parameter)
            return _weighted_sum(subject, encoding, _inputs(subject))

    _check_slope(value, start, gradient, scale.expand_as(start), name)


def _perturb(encoding: nn.Module) -> None:
    generator = torch.Generator().manual_seed(8)
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator).to(parameter)


def _check_slope(value: Callable[[Tensor], Tensor], start: Tensor, gradient: Tensor, scale: Tensor, name: str) -> None:
    """Compares the gradient with central differences, in the direction where all its entries add up."""
    expect(bool(gradient.isfinite().all()), f"expected a finite gradient to {name}, got NaN or infinity")
    direction = gradient.sign() * scale
    got = (gradient.double() * direction.double()).sum().item()
    want = {h: ((value(start + h * direction) - value(start - h * direction)) / (2 * h)).item() for h in STEPS}
    rounding = max((value(start + n * NOWHERE * direction) - value(start)).abs().item() for n in (-3, -2, -1, 1, 2, 3))
    off = {h: abs(slope - got) - rounding / h for h, slope in want.items()}
    best = min(off, key=off.__getitem__)
    expect(
        off[best] <= TOLERANCE * abs(got),
        f"expected a slope of {want[best]:.4g} along the gradient to {name}, as finite differences show, got {got:.4g}",
    )


def _check_flat(subject: Subject, encoding: nn.Module, inputs: Inputs, name: str, other: Tensor) -> None:
    """Without a gradient results may only jump, as those of buckets do: a short step leaves most as they are."""
    with torch.no_grad():
        before = subject.call(encoding, inputs)
        after = subject.call(encoding, inputs | {name: inputs[name] + 1e-2 * (other - inputs[name])})
    changed = [(before[part] != after[part]).double().mean().item() for part in before]
    expect(max(changed) < 0.5, f"expected a gradient to {name}, got none though the results depend on it")
