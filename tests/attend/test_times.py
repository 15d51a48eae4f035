"""Training on timestamps in half precision: nothing explodes, however far apart they lie."""

import pytest
import torch

from mmpos import FIRE, KERPLE, ALiBi, PeriodicBias, T5Bias, attention, sandwich_bias

HOUR, YEAR = 3600, 365 * 86400
BIASES = {
    "alibi": lambda: ALiBi(4),
    "alibi in hours, learned": lambda: ALiBi(4, per=HOUR, learned=True),
    "kerple": lambda: KERPLE(4),
    "kerple, power": lambda: KERPLE(4, kernel="power", per=HOUR),
    "fire": lambda: FIRE(4),
    "t5": lambda: T5Bias(4, boundaries=[60, HOUR, 86400, 30 * 86400]),
    "periodic": lambda: PeriodicBias(4, periods=(86400, 7 * 86400)),
    "sandwich": lambda: sandwich_bias(4),
}
PRODUCTS = ("alibi", "alibi in hours, learned", "periodic", "sandwich")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "name, backend",
    [
        (name, backend)
        for name in BIASES
        for backend in ("sdpa", "blocks", "auto", *(["factors"] if name in PRODUCTS else []))
    ],
)
def test_training_on_years_of_seconds_stays_finite(name, backend, dtype):
    bias = BIASES[name]().to(dtype)
    times = torch.randint(20 * YEAR, (2, 40, 1), generator=torch.Generator().manual_seed(0)).sort(dim=1).values
    times = times + 1_700_000_000
    q, k, v = (torch.randn(2, 4, 40, 8).to(dtype).requires_grad_() for _ in range(3))
    optimizer = torch.optim.SGD([q, k, v, *bias.parameters()], lr=1e-3)
    for _ in range(5):
        result = attention(q, k, v, bias=bias, q_coords=times, is_causal=True, backend=backend)
        assert result.dtype == dtype
        assert result.isfinite().all()
        optimizer.zero_grad()
        result.float().square().mean().backward()
        for part in (q, k, v, *bias.parameters()):
            assert part.grad is not None
            assert part.grad.isfinite().all()
        optimizer.step()
    result = attention(q, k, v, bias=bias, q_coords=times, is_causal=True, backend=backend)
    exact = [part.detach().double() for part in (q, k, v)]
    want = attention(*exact, bias=bias(times, times).detach().double(), is_causal=True, backend="dense")
    assert (result.double() - want).abs().max() < 2e-2
