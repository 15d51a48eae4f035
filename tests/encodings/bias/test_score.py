"""What `score` must be for fused kernels: numbers in, arithmetic of numbers, a number out."""

import pytest
import torch
from torch.overrides import TorchFunctionMode

from mmpos import grid_coords
from mmpos.encodings.bias.alibi import ALiBi
from mmpos.encodings.bias.buckets import T5Bias
from mmpos.encodings.bias.kernels import FIRE, KERPLE

BIASES = [
    ALiBi(5, axes=2),
    ALiBi(5, axes=2, metric="euclidean", per=(3.0, 0.5), learned=True),
    ALiBi(6, axes=2, metric="max", slopes=(1, 2, 3, 4, 5, 6)),
    T5Bias(5, 16, 40, axes=2),
    T5Bias(5, 9, 40, False, axes=2),
    KERPLE(5, axes=2),
    KERPLE(5, axes=2, kernel="power", metric="euclidean"),
    FIRE(5, axes=2, hidden=3, threshold=4.0),
]


@pytest.mark.parametrize("floats", [False, True])
@pytest.mark.parametrize("bias", BIASES, ids=lambda bias: type(bias).__name__)
def test_score_at_single_numbers_is_the_entry_of_the_bias(bias, floats):
    q_coords, k_coords = grid_coords(2, 3, origin=(3, 40)), grid_coords(3, 2)
    if floats:
        q_coords = q_coords + torch.rand(6, 2, dtype=torch.float64)
        k_coords = k_coords.double().masked_fill(k_coords == 2, torch.nan)
    dense = bias(q_coords, k_coords)
    for head in range(bias.num_heads):
        for i, q in enumerate(q_coords):
            for j, k in enumerate(k_coords):
                got = bias.score(torch.tensor(head), q.unbind(), k.unbind())
                assert (got.dtype, got.shape) == (torch.float32, ())
                torch.testing.assert_close(got, dense[head, i, j], atol=1e-6, rtol=1e-6, equal_nan=True)


class Record(TorchFunctionMode):
    """Notes what is called and the tensors that come out."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.calls.append((func.__name__, tuple(result.shape)))
        return result


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
@pytest.mark.parametrize("bias", BIASES, ids=lambda bias: type(bias).__name__)
def test_score_handles_nothing_but_numbers(bias, dtype):
    # FlexAttention's kernels can neither make nor join tensors, and only read captured ones at an index.
    places = [torch.tensor(n, dtype=dtype) for n in ([3, 4], [8, 9])]
    heads, record = torch.tensor([2, 0]), Record()
    with record:
        torch.vmap(bias.score)(heads, places, places[::-1])
    assert len(record.calls) > 5
    assert not {"tensor", "as_tensor", "stack", "cat", "arange"} & {name for name, _ in record.calls}
    assert {shape for _, shape in record.calls} == {()}
