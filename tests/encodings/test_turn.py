import itertools
import weakref

import pytest
import torch
import torch._inductor.metrics
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from mmpos import RoPE, Rotation, fuse_rotations, sequence_coords
from mmpos.encodings import turn as module
from mmpos.encodings.turn import formula, turn

# Torch itself scripts something when the first forward derivative is taken.
forward_derivatives = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")

LAYOUTS = ["half", "interleaved"]
HALVES = [torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def however_small(monkeypatch):
    monkeypatch.setattr(module, "FEW", 0)


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def parts_of(*shape, dtype=torch.float32):
    angles = 100 * draw(*shape, seed=7)
    return angles.cos().to(dtype), angles.sin().to(dtype)


# The same numbers (2, 3, 5, 11) in memory of many kinds.
MEMORY = {
    "contiguous": lambda x: x.clone(),
    "heads last": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "one of q, k, v": lambda x: torch.stack([x, x, x]).permute(1, 3, 0, 2, 4).contiguous()[:, :, 1].transpose(1, 2),
    "channels first": lambda x: x.mT.contiguous().mT,
    "every other channel": lambda x: x.repeat_interleave(2, dim=-1)[..., ::2],
    "from an odd place": lambda x: torch.cat([x[..., :1], x], dim=-1)[..., 1:],
    "reversed": lambda x: x.flip(1, 2).flip(1, 2),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("tokens", [5, 40])
def test_overlapping_windows_as_tokens(layout, dtype, tokens):
    x = draw(2, 3, tokens + 31).to(dtype).unfold(-1, 32, 1)
    assert x.shape == (2, 3, tokens, 32)
    cos, sin = parts_of(1, tokens, 16)
    assert torch.equal(turn(x, cos, sin, layout), formula(x, cos, sin, layout))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("function", [turn, formula])
@pytest.mark.parametrize("width", [7, 0])
def test_no_pair_turns_nothing(function, layout, dtype, width):
    x, (cos, sin) = draw(2, 3, 5, width).to(dtype).requires_grad_(), parts_of(1, 5, 0)
    result = function(x, cos.requires_grad_(), sin.requires_grad_(), layout)
    assert torch.equal(result, x)
    slope = draw(2, 3, 5, width, seed=1).to(dtype)
    to_x, to_cos, to_sin = torch.autograd.grad(result, (x, cos, sin), slope)
    assert torch.equal(to_x, slope)
    assert to_cos.shape == to_sin.shape == cos.shape


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES])
@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("block", [1, 70, 2**19])
def test_blocks_give_what_the_formula_gives(monkeypatch, layout, dtype, memory, block):
    monkeypatch.setattr(module, "BLOCK", block)
    for width, pairs in ((11, 5), (11, 3), (8, 4), (2, 1), (36, 16)):
        x = MEMORY[memory](draw(2, 3, 5, width).to(dtype))
        for shape in ((1, 5, pairs), (3, 5, pairs), (2, 1, 5, pairs)):
            cos, sin = parts_of(*shape)
            got, want = turn(x, cos, sin, layout), formula(x.double(), cos, sin, layout)
            assert got.dtype == dtype
            rounding = torch.finfo(dtype).eps / 2 * want.abs() + (1e-6 if dtype.itemsize < 8 else 1e-15)
            assert ((got.double() - want).abs() <= rounding).all()
            assert torch.equal(got[..., 2 * pairs :], x[..., 2 * pairs :])
            assert torch.equal(got, formula(x, cos, sin, layout))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("wide", ["x", "cos"])
def test_whichever_is_in_double_precision_decides(layout, wide):
    x, (cos, sin) = draw(2, 3, 5, 8), parts_of(1, 5, 4, dtype=torch.float64)
    x, cos, sin = (x, cos.float(), sin.float()) if wide == "x" else (x.float(), cos, sin)
    got = turn(x, cos, sin, layout)
    want = formula(x.double(), cos.double(), sin.double(), layout)
    torch.testing.assert_close(got, want.to(x.dtype), atol=1e-15, rtol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(0, 3, 5, 8), (2, 0, 5, 8), (2, 3, 0, 8), (3, 5, 8), (2, 1, 3, 2, 5, 8)])
def test_any_number_of_rows_heads_and_tokens(layout, shape):
    x, (cos, sin) = draw(*shape).float(), parts_of(1, shape[-2], 4)
    torch.testing.assert_close(turn(x, cos, sin, layout), formula(x, cos, sin, layout), atol=1e-6, rtol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("width, pairs", [(38, 19), (80, 40), (64, 32), (70, 32)])  # that fill registers or do not
def test_a_token_has_the_same_bits_alone_in_any_block_and_on_any_number_of_threads(
    monkeypatch, layout, dtype, width, pairs
):
    threads = torch.get_num_threads()
    x = draw(2, 3, 709, width).to(dtype)  # large enough to be shared out to threads
    cos, sin = parts_of(1, 709, pairs)
    want = formula(x, cos, sin, layout)
    try:
        for number, block in ((1, 2**19), (2, 2**19), (3, 2**19), (5, 2**19), (7, 2**19), (3, 2**10), (1, 5000)):
            torch.set_num_threads(number)
            monkeypatch.setattr(module, "BLOCK", block)
            assert torch.equal(turn(x, cos, sin, layout), want)
    finally:
        torch.set_num_threads(threads)
    monkeypatch.setattr(module, "BLOCK", 1)
    assert torch.equal(turn(x[:, :, :60], cos[:, :60], sin[:, :60], layout), want[:, :, :60])
    for memory, block in itertools.product(("heads last", "from an odd place", "channels first"), (2**19, 5000)):
        monkeypatch.setattr(module, "BLOCK", block)
        assert torch.equal(turn(MEMORY[memory](x), cos, sin, layout), want)
    for token in range(0, 709, 53):
        at = slice(token, token + 1)
        assert torch.equal(turn(x[:, :, at], cos[:, at], sin[:, at], layout), want[:, :, at])
    for head in range(3):
        assert torch.equal(turn(x[1:, head : head + 1], cos, sin, layout), want[1:, head : head + 1])


@pytest.mark.parametrize("threads", [1, 2, 3, 5, 7, 12, 20, 28, 48, 96])
def test_complex_numbers_are_shared_out_in_whole_vectors(threads):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        for *rows, tokens, width in (
            (8, 12, 1024, 64),
            (8, 12, 197, 64),
            (8, 16, 257, 80),
            (1, 32, 100, 128),
            (2, 300, 96),
        ):
            x = torch.empty(*rows, tokens, width)
            whole = module._in_whole_vectors(x, x)
            numbers = x[..., :whole, :].numel() // 2
            share = -(-numbers // max(1, min(threads, -(-numbers // 2**15))))  # as PyTorch splits a range
            assert whole * width // 2 % 16 == share % 16 == 0
            if torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512"):
                assert whole > 0.8 * tokens or (threads, tokens) == (96, 1024)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_heads_that_are_a_view_come_out_as_such_a_view(layout):
    x, (cos, sin) = draw(2, 5, 3, 8).float().transpose(1, 2), parts_of(1, 5, 4)
    assert turn(x, cos, sin, layout).stride() == x.stride()
    assert turn(MEMORY["channels first"](x), cos, sin, layout).is_contiguous()
    row = draw(5, 1, 8).float().expand(2, 5, 3, 8).transpose(1, 2)  # of which many entries are one
    torch.testing.assert_close(turn(row, cos, sin, layout), formula(row, cos, sin, layout), atol=1e-6, rtol=0)


@forward_derivatives
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("pairs, batch", [(4, ()), (3, (2,))])
def test_first_and_second_derivatives(layout, pairs, batch):
    x = draw(2, 3, 2, 8).requires_grad_()
    parts = [part.requires_grad_() for part in parts_of(*batch, 1, 2, pairs, dtype=torch.float64)]

    def turned(x, cos, sin):
        return turn(x, cos, sin, layout)

    assert torch.autograd.gradcheck(turned, (x, *parts), check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(turned, (x, *parts))
    for learned in (0, 1, 2):
        inputs = [part.detach().requires_grad_(place == learned) for place, part in enumerate((x, *parts))]
        assert torch.autograd.gradcheck(turned, inputs, check_forward_ad=True)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_blocks_are_those_of_the_formula(monkeypatch, layout, dtype):
    monkeypatch.setattr(module, "BLOCK", 50)
    weight = draw(2, 3, 5, 11, seed=3)
    slopes = []
    for function, kind in ((turn, dtype), (formula, torch.float64)):
        x = draw(2, 3, 5, 11).to(dtype).to(kind).requires_grad_()
        parts = [part.requires_grad_() for part in parts_of(3, 5, 4)]
        (function(x, *parts, layout) * weight.to(dtype).to(kind)).sum().backward()
        slopes.append([part.grad.double() for part in (x, *parts)])
    for got, want in zip(*slopes, strict=True):
        torch.testing.assert_close(got, want, atol=2e-6, rtol=torch.finfo(dtype).eps)


@forward_derivatives
@pytest.mark.parametrize("layout", LAYOUTS)
def test_function_transforms(layout):
    x, (cos, sin) = draw(4, 2, 3, 5, 9), parts_of(4, 1, 5, 3, dtype=torch.float64)

    def compare(transform, *arguments):
        got, want = (transform(lambda *a, f=f: f(*a, layout))(*arguments) for f in (turn, formula))
        torch.testing.assert_close(got, want, atol=1e-13, rtol=0)

    for in_dims in ((0, 0, 0), (0, None, None), (None, 0, 0), (0, 0, None)):
        arguments = [part if dim == 0 else part[0] for part, dim in zip((x, cos, sin), in_dims, strict=True)]
        compare(lambda f, in_dims=in_dims: torch.vmap(f, in_dims), *arguments)
    compare(lambda f: torch.vmap(f, (3, 2, 2), out_dims=1), x.movedim(0, 3), cos.movedim(0, 2), sin.movedim(0, 2))
    compare(lambda f: torch.vmap(torch.vmap(f, (0, None, None)), (0, 0, 0)), x, cos, sin)
    one = (x[0], cos[0], sin[0])
    compare(lambda f: lambda *a: torch.func.jvp(f, a, tuple(map(torch.ones_like, a)))[1], *one)
    small = (x[0, 0, :1, :2], cos[0, :, :2], sin[0, :, :2])
    for transform in (torch.func.jacrev, torch.func.jacfwd, torch.func.hessian):
        compare(lambda f, transform=transform: transform(lambda *a: f(*a).sin(), argnums=(0, 1, 2)), *small)
    compare(
        lambda f: torch.vmap(torch.func.grad(lambda *a: f(*a).square().mul(x[0]).sum(), argnums=(0, 1, 2))), x, cos, sin
    )


class Storages(TorchDispatchMode):
    """Sizes in bytes of the memory in which results of operations lie."""

    def __init__(self):
        super().__init__()
        self.kept, self.bytes = [], {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for part in torch.utils._pytree.tree_leaves(result):
            if isinstance(part, torch.Tensor):
                self.kept.append(part)
                self.bytes[part.untyped_storage().data_ptr()] = part.untyped_storage().nbytes()
        return result

    def larger_than(self, size, *known):
        ours = {part.untyped_storage().data_ptr() for part in known}
        return [nbytes for place, nbytes in self.bytes.items() if place not in ours and nbytes > size]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads, learned", [(1, False), (2, False), (1, True)])
@pytest.mark.parametrize("memory", ["contiguous", "heads last", "from an odd place"])
def test_only_results_are_as_large_as_queries(monkeypatch, layout, dtype, heads, learned, memory):
    monkeypatch.setattr(module, "BLOCK", 2**10)
    x = MEMORY[memory](draw(4, 6, 200, 16).to(dtype)).requires_grad_()
    weight = torch.ones_like(x)
    cos, sin = (part.requires_grad_(learned) for part in parts_of(heads, 200, 8))
    with Storages() as storages:
        turned = Rotation(cos, sin, layout).apply(x)
        slopes = torch.autograd.grad(turned, [x, cos, sin] if learned else x, weight)
    assert not storages.larger_than(x.nbytes / 4, x, weight, turned, slopes[0])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", [1, 2])
def test_only_the_rotation_is_kept_for_the_backward_pass(layout, dtype, heads):
    saved = []
    rotation = Rotation(*parts_of(heads, 5, 4), layout)
    leaf = draw(2, 6, 5, 9).to(dtype).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda part: saved.append(part) or part, lambda part: part):
        x = leaf * 1
        saved.clear()
        turned = rotation.apply(x)
    places = {part.untyped_storage().data_ptr() for part in saved}
    assert places == {part.untyped_storage().data_ptr() for part in rotation[:2]}
    gone = weakref.ref(x)
    del x
    assert gone() is None
    turned.sum().backward()


def test_queries_are_kept_for_learned_angles_as_they_are():
    saved = []
    cos, sin = (part.requires_grad_() for part in parts_of(1, 5, 4))
    x = draw(2, 3, 5, 8).bfloat16()
    with torch.autograd.graph.saved_tensors_hooks(lambda part: saved.append(part) or part, lambda part: part):
        Rotation(cos, sin).apply(x)
    assert {part.data_ptr() for part in saved} == {part.data_ptr() for part in (x, cos, sin)}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_compiled_once_or_twice_over_lengths_without_a_break(layout):
    rope, counter = RoPE(8, layout=layout), CompileCounterWithBackend("aot_eager")

    def attend(q, k):
        rotation = rope(sequence_coords(q.shape[-2]))
        return rotation.apply(q) @ rotation.apply(k).mT

    compiled = torch.compile(attend, backend=counter, fullgraph=True)
    for length in (64, 128, 196, 256, 512, 1000, 4096):
        q, k = draw(2, length, 8).float(), draw(2, length, 8, seed=1).float()
        torch.testing.assert_close(compiled(q, k), attend(q, k), atol=1e-5, rtol=0)
    assert counter.frame_count <= 2


@pytest.mark.parametrize("layout", LAYOUTS)
def test_compiled_into_one_kernel_with_what_makes_queries(layout):
    rotation, x = RoPE(8, layout=layout)(sequence_coords(5)), draw(2, 5, 8).float()

    def turned(x):
        return rotation.apply(x * 2)

    torch._inductor.metrics.reset()
    torch.testing.assert_close(torch.compile(turned, fullgraph=True)(x), turned(x), atol=1e-6, rtol=0)
    assert torch._inductor.metrics.generated_kernel_count == 1


def test_without_values():
    cos, sin = parts_of(1, 5, 4)
    assert turn(torch.empty(2, 3, 5, 9, device="meta"), cos.to("meta"), sin.to("meta"), "half").shape == (2, 3, 5, 9)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert turn(torch.empty(2, 3, 5, 9), cos, sin, "interleaved").shape == (2, 3, 5, 9)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_few_tokens_have_the_bits_of_many(monkeypatch, layout):
    monkeypatch.undo()
    x, (cos, sin) = draw(2, 3, 700, 38).float(), parts_of(1, 700, 19)
    assert x.numel() > module.FEW > x[..., :5, :].numel()
    assert torch.equal(turn(x, cos, sin, layout)[..., :5, :], turn(x[..., :5, :], cos[:, :5], sin[:, :5], layout))


def test_an_infinite_channel_spoils_its_pair_only():
    cos, sin = parts_of(1, 5, 4)
    for layout in LAYOUTS:
        x = draw(3, 5, 9).float()
        x[1, 2, 0] = torch.inf
        partner = 4 if layout == "half" else 1
        got = turn(x, cos, sin, layout)
        assert (~got.isfinite()).nonzero().tolist() == [[1, 2, 0], [1, 2, partner]]


@pytest.fixture
def fused():
    fuse_rotations()
    yield
    fuse_rotations(False)
    torch.compiler.reset()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_fused_rotation_is_the_same_to_a_rounding(fused, layout, dtype):
    rotation = RoPE(head_dim=10, rotary_dim=8, layout=layout)(sequence_coords(300))
    x = draw(2, 3, 300, 10).to(dtype).requires_grad_()
    slope = draw(2, 3, 300, 10, seed=1).to(dtype)
    got = rotation.apply(x)
    (to_x,) = torch.autograd.grad(got, x, slope)
    want, back = (formula(each.double(), rotation.cos, sin, layout) for each, sin in (
        (x.detach(), rotation.sin), (slope, -rotation.sin),
    ))  # fmt: skip
    for ours, exact in ((got, want), (to_x, back)):
        assert ours.dtype == dtype
        rounding = torch.finfo(dtype).eps / 2 * exact.abs() + 1e-6
        assert ((ours.double() - exact).abs() <= rounding).all()


def test_fused_rotations_are_made_once_and_keep_little(fused):
    kept = []
    counters.clear()
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.shape), lambda tensor: tensor):
        for length in (64, 100, 256, 4096):
            rotation = RoPE(head_dim=8)(sequence_coords(length))
            rotation.apply(torch.randn(1, 2, length, 8, requires_grad=True))
            assert {tuple(shape) for shape in kept[-2:]} == {(1, length, 4)}
    assert len(kept) == 8
    assert 1 <= counters["stats"]["unique_graphs"] <= 2


def test_what_is_no_longer_fused_is_as_it_was(fused):
    rotation, x = RoPE(head_dim=8)(sequence_coords(50)), draw(2, 3, 50, 8).float()
    rotation.apply(x)
    fuse_rotations(False)
    assert torch.equal(rotation.apply(x), formula(x, rotation.cos, rotation.sin, "half"))
