import math

import pytest
import torch
from torch import nn

from mmpos import (
    AdditiveEncoding,
    ALiBi,
    AttentionBias,
    LearnedTable,
    LogitScale,
    RoPE,
    RotaryEncoding,
    Rotation,
    Sinusoidal,
)
from mmpos.encodings.checks import check_coords
from mmpos.testing import POINTS, EncodingError, check_encoding

EAGER = [name for name in POINTS if name != "compiling"]


# Encodings as users may write them, each with one fault.


class Edited(Sinusoidal):
    """Sinusoids of other coordinates than those given, or other results."""

    def forward(self, coords, *, length=None):
        check_coords(coords, self.axes)
        return self.after(super().forward(self.before(coords, length)), coords)

    def before(self, coords, length):
        return coords

    def after(self, result, coords):
        return result


class FromTheFirst(Edited):
    def before(self, coords, length):
        return coords - coords.nan_to_num(0, 0, 0).amin(-2, keepdim=True) if coords.shape[-2] else coords


class AtMost256(Edited):
    def before(self, coords, length):
        return coords[..., :256, :]


class Squeezed(Edited):
    def after(self, result, coords):
        return result.squeeze(-2) if coords.shape[-2] == 1 else result


class Doubled(Edited):
    def after(self, result, coords):
        return result.double()


class Wrapping(Edited):
    def before(self, coords, length):
        return 2 * coords  # past 127 in 8 bits


class OnlyForward(Edited):
    def before(self, coords, length):
        if not coords.is_meta and (coords[coords.isfinite()] < 0).any():
            raise ValueError("negative positions")
        return coords


class Forgiving(Edited):
    def before(self, coords, length):
        return coords.nan_to_num() if coords.is_floating_point() else coords


class Spilling(Edited):
    def after(self, result, coords):
        return result + 0.0 * coords.sum((-2, -1), keepdim=True).float()


class OfTheLongestRow(Edited):
    def before(self, coords, length):
        if length is None:
            length = coords.max() + 1
        elif isinstance(length, torch.Tensor):
            length = length[..., None, None]
        return 100 * coords.double() / length


class AgainstTheFirstRow(Edited):
    def before(self, coords, length):
        return coords.double() - coords[:1] if coords.ndim == 3 else coords


class Remembering(Edited):
    longest = 0

    def before(self, coords, length):
        self.longest = max(self.longest, coords.shape[-2])
        return coords.double() / self.longest


class Caching(Sinusoidal):
    def forward(self, coords, *, length=None):
        self.cache = getattr(self, "cache", {})
        if coords.shape not in self.cache:
            self.cache[coords.shape] = super().forward(coords)
        return self.cache[coords.shape]


class Shifting(Edited):
    def after(self, result, coords):
        with torch.no_grad():
            coords += 1
        return result


class Dropping(Sinusoidal):
    def forward(self, coords, *, length=None):
        return super().forward(coords[..., : self.axes])


class Nameless(Sinusoidal):
    def forward(self, coords, *, length=None):
        if coords.shape[-1] != self.axes:
            raise ValueError("wrong number of axes")
        return super().forward(coords)


class TakingHalf(Sinusoidal):
    def forward(self, coords, *, length=None):
        return super().forward(coords.float() if coords.dtype in (torch.float16, torch.bfloat16) else coords)


class TakingMasks(Sinusoidal):
    def forward(self, coords, *, length=None):
        return super().forward(coords.long() if coords.dtype == torch.bool else coords)


class Frozen(LearnedTable):
    def _cells(self, coords):
        return super()._cells(coords).detach()


class Detached(Edited):
    def before(self, coords, length):
        return coords.detach()


class Steeper(Edited):
    def before(self, coords, length):
        return 2 * coords - coords.detach() if coords.requires_grad else coords


class LazyGain(LearnedTable):
    gain = None

    def forward(self, coords, *, length=None):
        if self.gain is None:
            self.gain = torch.ones(self.dim, device=coords.device)
        return super().forward(coords) * self.gain.to(self.weight.dtype)


class Buffered(Edited):
    def __init__(self, dim):
        super().__init__(dim)
        self.register_buffer("gain", torch.ones(()), persistent=False)

    def after(self, result, coords):
        return result * self.gain


class FrequencyBuffer(AdditiveEncoding):
    """As most of the field writes it."""

    def __init__(self, dim):
        super().__init__()
        self.axes, self.dim = 1, dim
        self.register_buffer("inv_freq", 100.0 ** -torch.linspace(0, 1, dim // 2))

    def forward(self, coords, *, length=None):
        check_coords(coords, 1)
        coords = coords.masked_fill(~coords.isfinite(), torch.nan) if coords.is_floating_point() else coords
        angles = coords.to(self.inv_freq.dtype) * self.inv_freq
        return torch.cat([angles.sin(), angles.cos()], dim=-1)


class Undecayed(LearnedTable):
    def no_weight_decay(self):
        return {"table"}


class WithLambda(Sinusoidal):
    def __init__(self, dim):
        super().__init__(dim)
        self.activation = lambda x: x


class KeepingItsResult(LearnedTable):
    def forward(self, coords, *, length=None):
        self.last = super().forward(coords)
        return self.last


class PositionsInItsDtype(LearnedTable):
    def _cells(self, coords):
        return super()._cells(coords.to(self.weight.dtype).long())


class Contracting(AdditiveEncoding):
    def __init__(self, dim):
        super().__init__()
        self.axes, self.dim = 2, dim

    def forward(self, coords, *, length=None):
        check_coords(coords, 2)
        coords = coords.masked_fill(~coords.isfinite(), torch.nan) if coords.is_floating_point() else coords
        freqs = torch.linspace(-1, 1, 2 * self.dim, device=coords.device).view(2, self.dim)
        return (coords.float() @ freqs).float().sin()


class Peeking(Edited):
    def before(self, coords, length):
        return coords + 0 if coords.numel() and coords.sum() == -1 else coords


class Initialised(LearnedTable):
    def __init__(self, dim, size):
        super().__init__(dim, size)
        nn.init.normal_(self.weight)

    def reset_parameters(self):
        pass


class Branching(Edited):
    def before(self, coords, length):
        return coords + 0 if not coords.is_meta and coords.numel() and coords.sum() == -1 else coords


class Wordy(Edited):
    def before(self, coords, length):
        self.said = f"{coords.shape[-2]} tokens"
        return coords


class Louder(RoPE):
    def forward(self, coords, *, length=None):
        rotation = super().forward(coords)
        return rotation._replace(cos=1.5 * rotation.cos, sin=1.5 * rotation.sin)


class Quadratic(RoPE):
    def forward(self, coords, *, length=None):
        check_coords(coords, self.axes)
        return super().forward(coords.double() * coords.double().abs())


class InPlace(Rotation):
    def apply(self, x, role=None):
        return x.copy_(super().apply(x, role))


class OneWay(Rotation):
    def inverse(self):
        return self


class ZeroPrefix(Rotation):
    def with_prefix(self, num_prefix_tokens):
        return self._replace(**{
            part: nn.functional.pad(getattr(self, part), (0, 0, num_prefix_tokens, 0)) for part in ("cos", "sin")
        })  # fmt: skip


class Everywhere(Rotation):
    def where(self, positioned):
        return self


class Turning(RoPE):
    def __init__(self, head_dim, rotation):
        super().__init__(head_dim)
        self.rotation = rotation

    def forward(self, coords, *, length=None):
        return self.rotation(*super().forward(coords))


class WrongSign(ALiBi):
    def score(self, head, q_coord, k_coord):
        return -super().score(head, q_coord, k_coord)


class KeysFirst(ALiBi):
    def forward(self, q_coords, k_coords, *, query=None, key=None, tokens=None):
        return super().forward(k_coords, q_coords)

    def score(self, head, q_coord, k_coord):
        return super().score(head, k_coord, q_coord)


class Product(AttentionBias):
    """``slope * q_coord * k_coord / 1e6``, which is an inner product."""

    def __init__(self, num_heads, slope):
        super().__init__()
        self.axes, self.num_heads, self.slope = 1, num_heads, slope

    def forward(self, q_coords, k_coords, *, query=None, key=None, tokens=None):
        left, right = self._factors(q_coords, k_coords, 0.5)
        return (left * right.mT).float()

    def factors(self, q_coords, k_coords, *, ordered=False, query=None, key=None, tokens=None):
        return self._factors(q_coords, k_coords, self.slope)

    def _factors(self, q_coords, k_coords, slope):
        check_coords(q_coords, 1, "q_coords")
        check_coords(k_coords, 1, "k_coords")
        parts = [coords.double().unsqueeze(-3) / 1000 for coords in (q_coords, k_coords)]
        left, right = (part.masked_fill(~part.isfinite(), torch.nan) for part in parts)
        return left.repeat_interleave(self.num_heads, dim=-3) * slope, right.repeat_interleave(self.num_heads, dim=-3)


BROKEN = [
    ({"shapes"}, AtMost256(12, axes=2)),
    ({"shapes", "few_tokens", "nonfinite_coordinates", "score", "token_alone"}, KeysFirst(4)),
    ({"few_tokens", "token_alone"}, Squeezed(12)),
    ({"dtypes"}, Doubled(12)),
    ({"coordinate_dtypes"}, Wrapping(12)),
    ({"free_coordinates"}, OnlyForward(12)),
    ({"nonfinite_coordinates"}, Forgiving(12, axes=3)),
    ({"nonfinite_coordinates"}, Spilling(12, axes=2)),
    ({"length"}, OfTheLongestRow(12)),
    ({"batch", "length"}, AgainstTheFirstRow(12)),
    ({"token_alone", "nonfinite_coordinates"}, FromTheFirst(12)),
    ({"call_order"}, Remembering(12)),
    ({"call_order", "nonfinite_coordinates", "input_gradients", "inference_first"}, Caching(12)),
    ({"unchanged_inputs"}, Shifting(12)),
    ({"wrong_axes"}, Dropping(12, axes=2)),
    ({"wrong_axes"}, Nameless(12)),
    ({"half_precision_coordinates"}, TakingHalf(12)),
    ({"boolean_coordinates"}, TakingMasks(12)),
    ({"parameter_gradients"}, Frozen(6, size=(7, 5))),
    ({"input_gradients"}, Detached(12)),
    ({"input_gradients"}, Steeper(12, axes=2)),
    ({"inference_first"}, LazyGain(6, size=9)),
    ({"state_dict", "reset_parameters"}, Buffered(12)),
    ({"state_dict", "reset_parameters", "dtypes", "casting"}, FrequencyBuffer(12)),
    ({"weight_decay"}, Undecayed(6, size=9)),
    ({"pickling"}, WithLambda(12)),
    ({"deepcopy"}, KeepingItsResult(6, size=9)),
    ({"casting"}, PositionsInItsDtype(4, size=299)),
    ({"autocasting", "token_alone"}, Contracting(12)),
    ({"meta_device"}, Peeking(12)),
    ({"reset_parameters"}, Initialised(6, size=9)),
    ({"compiling"}, Branching(12)),
    ({"compiling"}, Wordy(12)),
    ({"unit_rotation", "inverse_rotation", "prefix_rotation", "masked_rotation"}, Louder(12)),
    ({"relative_rotation"}, Quadratic(12)),
    ({"applying"}, Turning(12, InPlace)),
    ({"inverse_rotation"}, Turning(12, OneWay)),
    ({"prefix_rotation"}, Turning(12, ZeroPrefix)),
    ({"masked_rotation"}, Turning(12, Everywhere)),
    ({"score"}, WrongSign(4, axes=2)),
    ({"factors"}, Product(3, slope=0.25)),
]


@pytest.mark.parametrize("points, encoding", [pytest.param(*case, id=type(case[1]).__name__) for case in BROKEN])
def test_a_fault_is_named(points, encoding):
    with pytest.raises(EncodingError) as error:
        check_encoding(encoding, points=POINTS if "compiling" in points else EAGER)
    assert set(error.value.failures) == points, str(error.value)
    assert isinstance(error.value, AssertionError)
    for point in points:
        assert f"\n  {point}: " in str(error.value)
        assert "expected" in error.value.failures[point]
        assert "got" in error.value.failures[point]


def test_every_point_can_fail():
    assert set().union(*(points for points, _ in BROKEN)) == set(POINTS)


# Encodings without a fault, of sorts that the package itself may not have.


class Slopes(AttentionBias):
    """Learned slopes, which stay in float32."""

    def __init__(self, num_heads):
        super().__init__()
        self.axes, self.num_heads = 1, num_heads
        self.slopes = nn.Parameter(torch.empty(num_heads))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.uniform_(self.slopes)

    def no_weight_decay(self):
        return {"slopes"}

    def forward(self, q_coords, k_coords, *, query=None, key=None, tokens=None):
        return -self.slopes.float()[:, None, None] * distances(q_coords, k_coords).float()


class Buckets(Slopes):
    """Flat between jumps, as T5's: no gradient to coordinates is right."""

    def forward(self, q_coords, k_coords, *, query=None, key=None, tokens=None):
        distance = distances(q_coords, k_coords)
        bucket = distance.nan_to_num().clamp(1).log2().long().clamp(max=self.num_heads - 1)
        return self.slopes.float()[bucket].where(~distance.isnan(), torch.nan).expand(
            *distance.shape[:-3], self.num_heads, *distance.shape[-2:]
        )  # fmt: skip


class Network(AttentionBias):
    """A small network of the distance, starting at 0."""

    def __init__(self, num_heads):
        super().__init__()
        self.axes, self.num_heads = 1, num_heads
        self.hidden, self.out = nn.Linear(1, 8), nn.Linear(8, num_heads)
        self.reset_parameters()

    def reset_parameters(self):
        self.hidden.reset_parameters()
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def no_weight_decay(self):
        return set()

    def forward(self, q_coords, k_coords, *, query=None, key=None, tokens=None):
        distance = distances(q_coords, k_coords).movedim(-3, -1).float().log1p()
        with torch.autocast("cpu", enabled=False):
            hidden = nn.functional.linear(distance, self.hidden.weight.float(), self.hidden.bias.float()).tanh()
            bias = nn.functional.linear(hidden, self.out.weight.float(), self.out.bias.float())
        return bias.movedim(-1, -3)


class OfContent(AttentionBias):
    """Depends on queries, keys and tokens."""

    needs = frozenset({"query", "key", "tokens"})

    def __init__(self, num_heads, num_kv_heads, head_dim, dim):
        super().__init__()
        self.axes, self.dim, self.head_dim = 1, dim, head_dim
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads

    def forward(self, q_coords, k_coords, *, query=None, key=None, tokens=None):
        key = key.repeat_interleave(self.num_heads // self.num_kv_heads, dim=-3)
        gate = query[..., :, None, 0] + key[..., None, :, -1] + tokens.sum(-1)[..., None, :, None]
        return (gate.sin() / (1 + distances(q_coords, k_coords))).float()


class Visible(LogitScale):
    """The logarithm of the number of keys, and how far the query is from the start."""

    def __init__(self, num_heads):
        super().__init__()
        self.axes, self.num_heads = 1, num_heads

    def forward(self, q_coords, *, visible=None):
        check_coords(q_coords, 1, "q_coords")
        far = q_coords.double()[..., 0].abs()
        far = far.masked_fill(~far.isfinite(), torch.nan) / math.e
        return ((1 + visible).log() + far.log1p()).float().unsqueeze(-2).repeat_interleave(self.num_heads, dim=-2)


class OnTheSphere(RotaryEncoding):
    """A latitude within a quarter turn, with a learned gain."""

    axes = 1

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.empty(3))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.normal_(self.gain)

    def no_weight_decay(self):
        return {"gain"}

    def example_coords(self, n):
        return torch.linspace(-90, 90, max(n, 2), dtype=torch.float64)[:n, None]

    def forward(self, coords, *, length=None):
        check_coords(coords, 1)
        if not torch.compiler.is_compiling() and not coords.is_meta and (coords.abs() > 90)[coords.isfinite()].any():
            raise ValueError("latitudes are from -90 to 90")
        angles = coords.masked_fill(~(coords.abs() <= 90), torch.nan).deg2rad() * self.gain
        return Rotation(angles.cos().float().unsqueeze(-3), angles.sin().float().unsqueeze(-3))

    def _apply(self, fn, recurse=True):
        def keep(tensor):
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        return super()._apply(keep, recurse)


def distances(q_coords, k_coords):
    check_coords(q_coords, 1, "q_coords")
    check_coords(k_coords, 1, "k_coords")
    distance = (q_coords.double() - k_coords.double().mT).abs().unsqueeze(-3)
    return distance.masked_fill(~distance.isfinite(), torch.nan)


GOOD = [Slopes(4), Buckets(6), Network(5), OfContent(6, 3, 8, 10), Visible(4), OnTheSphere(), Product(3, slope=0.5)]


@pytest.mark.parametrize("encoding", GOOD, ids=lambda encoding: type(encoding).__name__)
def test_no_fault_is_found_where_there_is_none(encoding):
    report = check_encoding(encoding, points=EAGER)
    assert {*report.passed, *report.skipped} == set(EAGER)


class Plain(AttentionBias):
    """ALiBi without factors."""

    def __init__(self, num_heads):
        super().__init__()
        self.axes, self.num_heads, self.alibi = 1, num_heads, ALiBi(num_heads)

    def forward(self, q_coords, k_coords, *, query=None, key=None, tokens=None):
        return self.alibi(q_coords, k_coords)

    def score(self, head, q_coord, k_coord):
        return self.alibi.score(head, q_coord, k_coord)


def test_points_that_say_nothing_are_told_apart():
    report = check_encoding(Plain(4), points=["score", "factors", "inverse_rotation", "weight_decay"])
    assert report.passed == ("score",)
    assert list(report.skipped) == ["factors", "inverse_rotation", "weight_decay"]


def test_the_encoding_itself_is_never_called():
    encoding = Caching(12)
    with pytest.raises(EncodingError):
        check_encoding(encoding, points=["call_order"])
    assert not hasattr(encoding, "cache")


def test_the_random_numbers_of_the_caller_go_on_undisturbed():
    encoding = LearnedTable(6, size=9)
    torch.manual_seed(3)
    want = torch.rand(2)
    torch.manual_seed(3)
    check_encoding(encoding, points=EAGER)
    assert torch.equal(torch.rand(2), want)


def test_an_error_that_nobody_expected_is_a_failure_of_its_point_alone():
    class Raising(Sinusoidal):
        def forward(self, coords, *, length=None):
            if coords.ndim == 3:
                raise RuntimeError("no batches\nand a long explanation")
            return super().forward(coords)

    with pytest.raises(EncodingError) as error:
        check_encoding(Raising(12), points=["shapes", "call_order", "batch"])
    assert error.value.failures == dict.fromkeys(["shapes", "batch"], "expected no error, got RuntimeError: no batches")
    assert "fails 2 of 3 points" in str(error.value)
    assert isinstance(error.value.__cause__, RuntimeError)


def test_content_that_a_bias_needs_must_have_a_size():
    encoding = OfContent(6, 3, 8, 10)
    del encoding.head_dim
    with pytest.raises(EncodingError, match="expected an attribute head_dim, for the content that it needs, got none"):
        check_encoding(encoding, points=["shapes"])


def test_what_is_no_encoding_is_refused():
    with pytest.raises(TypeError, match=r"encoding must be a built AdditiveEncoding, .* got Linear\("):
        check_encoding(nn.Linear(2, 3))
    with pytest.raises(TypeError, match=r"encoding must be a built AdditiveEncoding, .* got <class"):
        check_encoding(Sinusoidal)
    encoding = Sinusoidal(12)
    del encoding.axes
    with pytest.raises(TypeError, match="Sinusoidal must say its number of axes, a positive integer, got None"):
        check_encoding(encoding)


def test_unknown_points_are_refused():
    with pytest.raises(ValueError, match="unknown points 'shape'; known: shapes, few_tokens"):
        check_encoding(Sinusoidal(12), points=["shape"])
