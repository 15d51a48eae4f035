"""Rows as batches: padding, packing, positions to go on from, and rules of the user's own."""

import math

import numpy as np
import pytest
import torch

import mmpos
from mmpos import Audio, Bare, Image, Series, Text, Together, Video, multimodal_coords
from mmpos.multimodal import Placement
from mmpos.multimodal.rules import RULES

ROWS = [
    [Text(3), Image(2, 5), Text(2)],
    [Text(4)],
    [Video(3, 2, 4, fps=1.5), Bare(2), Text(1), Audio(5, rate=2.0), Series([3.0, 4.5])],
    [],
]
LENGTHS = [15, 4, 34, 0]
BUILT_IN = sorted(RULES)


@pytest.mark.parametrize("rule", BUILT_IN)
def test_a_batch_is_its_rows(rule):
    """One row never changes another, on whichever side pads stand, or packed."""
    alone = [multimodal_coords([row], rule) for row in ROWS]
    right, left = multimodal_coords(ROWS, rule), multimodal_coords(ROWS, rule, padding="left")
    packed = multimodal_coords(ROWS, rule, packed=True)
    assert right.mask.tolist() == [[i < length for i in range(34)] for length in LENGTHS]
    assert left.mask.tolist() == [[i >= 34 - length for i in range(34)] for length in LENGTHS]
    assert packed.mask.tolist() == [[row for row, length in enumerate(LENGTHS) for _ in range(length)]]
    for result in (right, left, packed):
        assert result.coords.dtype == result.next_position.dtype == alone[0].coords.dtype
        assert torch.equal(result.next_position, torch.cat([one.next_position for one in alone]))
        for number, one in enumerate(alone):
            rows = result.coords[0, packed.mask[0] == number] if result is packed else result.coords[number]
            rows = rows if result is packed else rows[result.mask[number]]
            assert torch.equal(rows, one.coords[0])
    assert not right.coords[~right.mask].any()
    assert not left.coords[~left.mask].any()


@pytest.mark.parametrize("rule", BUILT_IN)
def test_the_dtype_is_the_rules(rule):
    dtype = torch.float64 if rule in ("aligned", "v2pe", "videorope") else torch.int64
    for rows in ([], [[]], [[Bare(2)]], [[Text(1)]], ROWS):
        for packed in (False, True):
            coords, mask, next_position = multimodal_coords(rows, rule, packed=packed)
            assert coords.dtype == next_position.dtype == dtype
            assert next_position.shape == (len(rows),)
            assert coords.shape == (*mask.shape, 3)
            assert len(mask) == (1 if packed else len(rows))
            assert mask.dtype == (torch.int64 if packed else torch.bool)


@pytest.mark.parametrize("rule", BUILT_IN)
def test_text_goes_on_from_the_next_position(rule):
    """Generating behind a prompt of text: what the whole row would have had."""
    rows = [[Text(3), Image(5, 2), Text(2)], [Text(6)]]
    *_, start = multimodal_coords(rows, rule)
    longer = multimodal_coords([[*row, Text(3)] for row in rows], rule, padding="left").coords
    assert torch.equal(longer[:, -3:], (start[:, None] + torch.arange(3))[..., None].expand(-1, -1, 3))


def test_positions_feed_a_rotation_and_masks():
    coords, mask, _ = multimodal_coords(ROWS[:3], "qwen2_vl")
    assert mmpos.RoPE(head_dim=16, axes=3, spectrum=mmpos.Sections((2, 3, 3)))(coords).cos.shape == (3, 1, 34, 8)
    q = torch.randn(3, 2, 34, 16)
    out = mmpos.attention(q, q, q, mask=mmpos.masks.padding(mask))
    packed = multimodal_coords(ROWS[:3], "qwen2_vl", packed=True)
    own = torch.cat([q[row, :, :length] for row, length in enumerate(LENGTHS[:3])], dim=1)[None]
    joined = mmpos.attention(own, own, own, mask=mmpos.masks.documents(packed.mask))
    expected = torch.cat([out[row, :, :length] for row, length in enumerate(LENGTHS[:3])], dim=1)
    torch.testing.assert_close(joined[0], expected, atol=1e-6, rtol=0)


def test_tokens_without_a_position_are_not_turned():
    coords, _, _ = multimodal_coords([[Text(3), Bare(2), Image(2, 3)]], "aligned")
    rotation = mmpos.RoPE(head_dim=12, axes=3)(coords)
    x = torch.randn(1, 1, 11, 12)
    assert torch.equal(rotation.apply(x)[:, :, 3:5], x[:, :, 3:5])


def test_results_lie_where_they_are_wanted():
    assert all(part.device.type == "meta" for part in multimodal_coords(ROWS, "aligned", device="meta"))
    with torch.device("meta"):
        assert all(part.device.type == "meta" for part in multimodal_coords(ROWS, "qwen2_5_omni"))


@pytest.fixture
def restored_rules():
    before = dict(RULES)
    yield
    RULES.clear()
    RULES.update(before)


def halves(segment, position, *, step=0.5):
    coords = (position + step * torch.arange(segment.size, dtype=torch.float64))[:, None].expand(-1, 3)
    return coords, position + step * segment.size


def test_a_rule_of_ones_own(restored_rules):
    mmpos.register_rule("halves", halves)
    rows = [[Text(2), Image(1, 2, keep=torch.tensor([False, True]))]]
    by_name = multimodal_coords(rows, "halves", step=0.25)
    assert by_name.coords[0, :, 2].tolist() == [0.0, 0.25, 0.75]
    assert by_name.next_position.tolist() == [1.0]
    assert torch.equal(multimodal_coords(rows, halves, step=0.25).coords, by_name.coords)
    with pytest.raises(ValueError, match="the rule name 'halves' is taken"):
        mmpos.register_rule("halves", halves)
    with pytest.raises(TypeError, match="rule must be a function"):
        mmpos.register_rule("other", "halves")
    with pytest.raises(TypeError, match="unknown option of rule 'halves' 'steps'; did you mean 'step'"):
        multimodal_coords(rows, halves, steps=1)


@pytest.mark.parametrize(
    "result, message",
    [
        ((torch.zeros(2, 3), 1), r"must place Text\(length=4, shared=False\) at int64 or float64 \(4, 3\), got"),
        ((torch.zeros(4, 3, dtype=torch.bfloat16), 1), r"got torch\.bfloat16 \(4, 3\)"),
        (([0, 1, 2, 3], 1), r"got \[0, 1, 2, 3\]"),
        ((torch.zeros(4, 3), torch.ones(2)), "next position as a number, got tensor"),
        (None, r"coordinates and the next position of Text\(length=4, shared=False\), got None"),
        ((torch.zeros(4, 3),), "coordinates and the next position of Text"),
        ((torch.zeros(4, 3), math.nan), "a finite next position, got nan behind Text"),
        (Placement(torch.zeros(4, 3), 4, torch.arange(4) + 1), r"order each token of Text\(length=4, .* once, got ten"),
        (Placement(torch.zeros(4, 3), 4, torch.arange(3)), r"order each token of Text\(length=4"),
    ],
)
def test_a_rule_that_does_not_fit(result, message):
    with pytest.raises((TypeError, ValueError), match=message):
        multimodal_coords([[Text(4)]], lambda segment, _: result if segment.size == 4 else (torch.zeros(1, 3), 1))


@pytest.mark.parametrize(
    "make, kind, message",
    [
        (lambda: Text(0), ValueError, "length of Text must be at least 1, got 0"),
        (lambda: Bare(-2), ValueError, "length of Bare must be at least 1, got -2"),
        (lambda: Text(2.0), TypeError, r"length of Text must be an integer, got 2\.0"),
        (lambda: Text(True), TypeError, "length of Text must be an integer, got True"),
        (lambda: Image(3, 0), ValueError, "width of Image must be at least 1, got 0"),
        (lambda: Video(0, 3, 4), ValueError, "frames of Video must be at least 1, got 0"),
        (lambda: Video(2, 3, 4, fps=0.0), ValueError, r"fps of Video must be positive and finite, got 0\.0"),
        (lambda: Video(2, 3, 4, fps="2"), TypeError, "fps of Video must be a number, got '2'"),
        (lambda: Audio(3, rate=-25.0), ValueError, r"rate of Audio must be positive and finite, got -25\.0"),
        (lambda: Video(2, 3, 4, fps=True), TypeError, "fps of Video must be a number, got True"),
        (lambda: Audio(3, rate=float("nan")), ValueError, "rate of Audio must be positive and finite, got nan"),
        (lambda: Audio(3, rate=10**400), ValueError, "rate of Audio must be positive and finite, got 1000"),
        (lambda: Text(3, shared="no"), TypeError, "shared of Text must be True or False, got 'no'"),
        (lambda: Image(2, 3, keep="all"), TypeError, "keep of Image must be a boolean mask, got 'all'"),
        (lambda: Audio(3, keep=[[True], [True, False]]), TypeError, r"keep of Audio must be a boolean mask, got \[\[T"),
        (lambda: multimodal_coords(iter([[Text(2)]]), "aligned"), TypeError, "rows must be a list of lists .*iterator"),
        (lambda: multimodal_coords(None, "aligned"), TypeError, "rows must be a list of lists of segments, got None"),
        (lambda: multimodal_coords([[Text(2)]], "aligned", packed="no"), TypeError, "packed must be True or False"),
        (lambda: mmpos.register_rule(3, halves), TypeError, "name of a rule must be text, got 3"),
        (lambda: Audio(3, rate=float("inf")), ValueError, "rate of Audio must be positive and finite, got inf"),
        (lambda: Audio(0, rate=1.0), ValueError, "length of Audio must be at least 1, got 0"),
        (lambda: Series([]), ValueError, r"timestamps of Series must be instants \(n,\), got shape \(0,\)"),
        (lambda: Series(torch.zeros(2, 3)), ValueError, r"instants \(n,\), got shape \(2, 3\)"),
        (lambda: Series([1.0, float("nan")]), ValueError, "timestamps of Series must not be missing, 1 are"),
        (lambda: Image(2, 3, keep=torch.ones(3, 2).bool()), ValueError, r"shape \(2, 3\) or be flat, got \(3, 2\)"),
        (lambda: Image(2, 3, keep=torch.ones(2, 3)), TypeError, r"keep of Image must be boolean \(True stays\)"),
        (lambda: Video(3, 4, 5).split([1, 2]), ValueError, r"one for each of the 3 frames, got \[1, 2\]"),
        (lambda: Together(), ValueError, "at least one segment"),
        (lambda: Together(Audio(2), Text(3)), TypeError, "made of Video, Audio and Series, got Text"),
        (lambda: multimodal_coords([Text(2)], "aligned"), TypeError, r"lists of segments, got Text.* rows\[0\]"),
        (lambda: multimodal_coords([[Text(2)], [Text(1), 3]], "aligned"), TypeError, r"rows\[1\]\[1\] must be a seg"),
        (lambda: multimodal_coords([[Text(2)]], "aligned", padding="top"), ValueError, "unknown padding 'top'"),
        (lambda: multimodal_coords([[Text(2)]], 3), TypeError, "rule must be text, got 3"),
    ],
)  # fmt: skip
def test_bad_input(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


@pytest.mark.parametrize("rule", BUILT_IN)
def test_sizes_and_rates_of_numpy_are_those_of_python(rule):
    """Sizes of eight bits too, whose product has more."""
    small, real = np.int8, np.float32
    theirs = [
        Text(np.uint8(200)), Text(np.uint8(200)), Image(small(12), small(13)), Bare(small(2)),
        Video(small(9), small(11), small(12), fps=real(1.5)), Audio(np.int64(7), rate=np.float16(2.5)),
    ]  # fmt: skip
    ours = [Text(200), Text(200), Image(12, 13), Bare(2), Video(9, 11, 12, fps=1.5), Audio(7, rate=2.5)]
    assert all(type(segment.size) is int for segment in theirs)
    assert repr(theirs[2]) == repr(ours[2])
    assert torch.equal(multimodal_coords([theirs], rule).coords, multimodal_coords([ours], rule).coords)


def test_segments_are_not_changed():
    keep = torch.tensor([[True, False, True], [False, True, True]])
    image = Image(2, 3, keep=keep)
    multimodal_coords([[image]], "qwen2_vl")
    assert keep.shape == (2, 3)
    with pytest.raises(AttributeError):
        image.height = 4
