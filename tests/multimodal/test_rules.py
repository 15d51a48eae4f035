"""Where each rule puts tokens, from formulas written out here."""

import math
from fractions import Fraction

import pytest
import torch

import mmpos
from mmpos import Audio, Bare, Image, Series, Text, Together, Video

FILM = Together(Video(4, 2, 3, fps=2.0), Audio(8, rate=4.0))
MIXED = [
    Text(3),
    Image(2, 5),
    Text(1),
    Video(3, 4, 2, fps=0.75),
    Audio(6, rate=4.0),
    Series([0.0, 0.5, 7.0]),
    FILM,
    Text(2),
]
RULES = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen2_5_omni", "sequential", "videorope", "v2pe", "aligned"]


def place(row, rule, **options):
    coords, mask, next_position = mmpos.multimodal_coords([row], rule, **options)
    assert mask.all()
    return coords[0], next_position.item()


def on_axes(*triples):
    return torch.tensor(triples).reshape(-1, 3)


def cells(height, width):
    return [(y, x) for y in range(height) for x in range(width)]


def test_sequential_counts_every_token():
    coords, next_position = place(MIXED, "sequential")
    size = sum(segment.size for segment in MIXED)
    assert torch.equal(coords, torch.arange(size)[:, None].expand(-1, 3))
    assert next_position == size


@pytest.mark.parametrize("after, text", [("side", 4 + 3), ("max", 4 + 6)])
def test_qwen2_vl_frames_count_and_text_goes_on(after, text):
    coords, next_position = place([Text(4), Video(6, 2, 3, fps=9.0), Text(2)], "qwen2_vl", after=after)
    video = [(4 + t, 4 + y, 4 + x) for t in range(6) for y, x in cells(2, 3)]
    head, tail = [(i,) * 3 for i in range(4)], [(text,) * 3, (text + 1,) * 3]
    assert torch.equal(coords, on_axes(*head, *video, *tail))
    assert next_position == max(4 + 6, text + 2)


def test_a_row_that_ends_in_a_video_goes_on_after_its_last_frame():
    assert place([Text(2), Video(9, 2, 3)], "qwen2_vl")[1] == 2 + 9
    assert place([Text(2), Video(9, 2, 3), Text(4)], "qwen2_vl")[1] == 2 + 9


@pytest.mark.parametrize("fps", [0.5, 2.0, 1.3, Fraction(30000, 1001)])
@pytest.mark.parametrize("after", ["side", "max"])
def test_qwen2_5_vl_time_is_in_seconds_and_images_have_none(fps, after):
    options = {"after": after, "tokens_per_second": 4}
    coords, _ = place([Image(3, 2), Video(5, 1, 2, fps=fps), Text(1)], "qwen2_5_vl", **options)
    assert torch.equal(coords[:6, 0], torch.zeros(6).long())
    times = [3 + math.floor(t * 4 / fps) for t in range(5) for _ in range(2)]
    assert coords[6:16, 0].tolist() == times
    assert coords[16].tolist() == [5 if after == "side" else max(times[-1], 4) + 1] * 3


def test_qwen3_vl_frames_are_images_behind_their_timestamps():
    row = [Text(2), *Video(2, 3, 4).split([5, 6]), Text(1)]
    coords, next_position = place(row, "qwen3_vl")
    expected = [(i,) * 3 for i in range(7)]
    expected += [(7, 7 + y, 7 + x) for y, x in cells(3, 4)]
    expected += [(i,) * 3 for i in range(11, 17)]
    expected += [(17, 17 + y, 17 + x) for y, x in cells(3, 4)] + [(21,) * 3]
    assert torch.equal(coords, on_axes(*expected))
    assert next_position == 22
    together, _ = place([Video(2, 3, 4)], "qwen3_vl")
    assert torch.equal(together, on_axes(*[(4 * t, 4 * t + y, 4 * t + x) for t in range(2) for y, x in cells(3, 4)]))


def test_omni_interleaves_sight_and_sound_in_chunks():
    coords, next_position = place([Text(1), Together(Video(3, 1, 2, fps=0.5), Audio(150, rate=25.0))], "qwen2_5_omni")
    frames = [[(1 + 50 * t, 1, 1), (1 + 50 * t, 1, 2)] for t in range(3)]
    sounds = [[(1 + i,) * 3 for i in range(50 * t, 50 * t + 50)] for t in range(3)]
    expected = [token for frame, sound in zip(frames, sounds, strict=True) for token in frame + sound]
    assert torch.equal(coords, on_axes((0, 0, 0), *expected))
    assert next_position == 151


def test_omni_frames_after_a_gap_are_spread_over_its_chunks():
    """A frame at 5 s belongs to the third chunk of 2 s; its first token stands in the second, as in transformers."""
    sound = Audio(150, rate=25.0, keep=torch.arange(150) % 50 == 0)
    coords, _ = place([Together(Video(2, 1, 3, fps=0.2), sound)], "qwen2_5_omni")
    first, late = [(0, 0, 0), (0, 0, 1), (0, 0, 2)], [(125, 0, 0), (125, 0, 1), (125, 0, 2)]
    sounds = [(0,) * 3, (50,) * 3, (100,) * 3]
    assert torch.equal(coords, on_axes(*first, sounds[0], late[0], sounds[1], *late[1:], sounds[2]))


def test_omni_text_goes_on_after_the_last_chunk_or_the_largest():
    film = Together(Video(1, 1, 40, fps=1.0), Audio(25, rate=25.0))
    assert place([film, Text(1)], "qwen2_5_omni")[0][-1].tolist() == [25] * 3
    assert place([film, Text(1)], "qwen2_5_omni", after="max")[0][-1].tolist() == [40] * 3


def test_omni_takes_a_film_in_either_order():
    video, audio = Video(3, 1, 2, fps=0.5), Audio(150, rate=25.0)
    row, other = [Together(video, audio)], [Together(audio, video)]
    assert torch.equal(place(row, "qwen2_5_omni")[0], place(other, "qwen2_5_omni")[0])


@pytest.mark.parametrize("step", [1.0, 0.25, 1 / 256])
def test_v2pe_steps_of_visual_tokens(step):
    coords, next_position = place([Text(2), Image(2, 3), Text(2), Video(2, 1, 2), Audio(2)], "v2pe", step=step)
    steps = [1.0] * 1 + [step] * 6 + [1.0] * 2 + [step] * 4 + [1.0] * 2
    expected = torch.tensor([0.0, *steps], dtype=torch.float64).cumsum(0)
    torch.testing.assert_close(coords, expected[:, None].expand(-1, 3), atol=1e-12, rtol=0)
    assert next_position == pytest.approx(expected[-1].item() + 1)
    assert place([Image(1, 2)], "v2pe", step=step)[0][:, 0].tolist() == [0.0, step]


@pytest.mark.parametrize("delta", [2, 0.5])
def test_videorope_is_diagonal_and_centred(delta):
    coords, next_position = place([Text(3), Video(4, 2, 5), Text(2)], "videorope", delta=delta)
    centres = [3 + delta * t for t in range(4)]
    video = [(c, c + y - 2 / 2, c + x - 5 / 2) for c in centres for y, x in cells(2, 5)]
    text = [(i + (delta - 1) * 4,) * 3 for i in (7, 8)]
    assert torch.equal(coords, on_axes(*[(i,) * 3 for i in range(3)], *video, *text).double())
    assert next_position == text[-1][0] + 1


def test_aligned_sound_and_frames_of_one_instant_meet():
    coords, next_position = place([Text(3), FILM, Text(1)], "aligned")
    video = [(c, c + y - 0.5, c + x - 1.0) for c in (3.0, 3.5, 4.0, 4.5) for y, x in cells(2, 3)]
    sound = [(3 + i / 4,) * 3 for i in range(8)]
    largest = max(max(token) for token in video + sound)
    expected = [(float(i),) * 3 for i in range(3)] + video + sound + [(largest + 1,) * 3]
    torch.testing.assert_close(coords, on_axes(*expected).double(), atol=1e-12, rtol=0)
    assert next_position == largest + 2
    frame, heard = coords[3:27].view(4, 2, 3, 3), coords[27:35]
    assert torch.equal(frame.mean((1, 2)), heard[::2])


def test_aligned_options_scale_text_and_cells():
    coords, _ = place([Text(2), Image(3, 2), Text(1)], "aligned", text_step=0.25, cell=0.1)
    image = [(0.5, 0.5 + 0.1 * (y - 1), 0.5 + 0.1 * (x - 0.5)) for y, x in cells(3, 2)]
    expected = on_axes((0.0,) * 3, (0.25,) * 3, *image, (0.6 + 0.25,) * 3).double()
    torch.testing.assert_close(coords, expected, atol=1e-7, rtol=0)


def test_aligned_series_keep_nanoseconds_of_today():
    stamps = torch.tensor([1711843200_000000000, 1711843200_000000250, 1711843201_000000000])
    coords, _ = place([Series(stamps, unit="ns")], "aligned")
    torch.testing.assert_close(coords[:, 0], torch.tensor([0, 250e-9, 1.0]).double(), atol=1e-16, rtol=1e-7)
    coords, _ = place([Together(Series([12.5, 11.0], origin=10), Audio(2, rate=0.5))], "aligned")
    assert coords[:, 0].tolist() == [2.5, 1.0, 0.0, 2.0]


@pytest.mark.parametrize("rule", RULES)
def test_dropped_tokens_move_nothing(rule):
    def kept(segment, keep):
        if isinstance(segment, Together):
            parts = keep.split([part.size for part in segment.segments])
            return Together(*[kept(part, own) for part, own in zip(segment.segments, parts, strict=True)])
        names = {Image: ("height", "width"), Video: ("frames", "height", "width", "fps"), Audio: ("length", "rate")}
        return type(segment)(*[getattr(segment, name) for name in names[type(segment)]], keep=keep)

    for segment in (Image(3, 4), Video(2, 3, 2, fps=1.5), Audio(7, rate=4.0), FILM):
        keep = torch.rand(segment.size) < 0.5
        whole, next_position = place([Text(2), segment, Text(3)], rule)
        some, goes_on = place([Text(2), kept(segment, keep), Text(3)], rule)
        assert goes_on == next_position
        assert len(some) == 5 + keep.sum()
        assert torch.equal(torch.cat([some[:2], some[-3:]]), torch.cat([whole[:2], whole[-3:]]))
        if segment is not FILM or rule != "qwen2_5_omni":
            assert torch.equal(some[2:-3], whole[2:-3][keep])


def test_omni_drops_tokens_where_they_stand_in_the_row():
    keep = torch.tensor([True, False, False, True, True, False])
    film = Together(Video(3, 1, 2, fps=0.5, keep=keep), Audio(150, rate=25.0, keep=torch.arange(150) % 50 == 7))
    coords, _ = place([film], "qwen2_5_omni")
    expected = [(0, 0, 0), (7, 7, 7), (50, 0, 1), (57,) * 3, (100, 0, 0), (107,) * 3]
    assert torch.equal(coords, on_axes(*expected))


@pytest.mark.parametrize("rule", RULES)
def test_tokens_without_a_position_move_nothing(rule):
    plain, next_position = place(MIXED, rule)
    row = [Bare(2)] + [part for segment in MIXED for part in (segment, Bare(3))]
    coords, goes_on = place(row, rule)
    bare = torch.cat([torch.full((part.size,), isinstance(part, Bare)) for part in row])
    assert torch.equal(coords[~bare], plain)
    assert not coords[bare].any()
    assert goes_on == next_position


@pytest.mark.parametrize("rule", RULES)
def test_what_follows_starts_after_the_text_before(rule):
    """Text alone is plain text under every rule, so a model of text keeps its positions."""
    coords, next_position = place([Text(4), Text(3)], rule)
    assert torch.equal(coords, torch.arange(7)[:, None].expand(-1, 3).to(coords.dtype))
    assert next_position == 7


def test_several_images_of_different_sizes():
    coords, _ = place([Image(1, 3), Image(4, 2), Image(2, 2)], "qwen2_vl")
    starts = [0, 3, 7]
    expected = [
        (p, p + y, p + x)
        for p, size in zip(starts, [(1, 3), (4, 2), (2, 2)], strict=True)
        for y, x in cells(*size)
    ]  # fmt: skip
    assert torch.equal(coords, on_axes(*expected))


ERRORS = [
    ("qwen2vl", {}, [Text(1)], ValueError, "unknown rule 'qwen2vl'; did you mean 'qwen2_vl'"),
    ("qwen2_vl", {"afer": "max"}, [Text(1)], TypeError, "option of rule 'qwen2_vl' 'afer'; did you mean 'after'"),
    ("qwen2_vl", {"after": "mx"}, [Text(1)], ValueError, "unknown after 'mx'; did you mean 'max'"),
    ("v2pe", {"step": 1.5}, [Text(1)], ValueError, r"step of v2pe must be at most 1, got 1\.5"),
    ("v2pe", {"step": 0}, [Text(1)], ValueError, "step of v2pe must be positive and finite, got 0"),
    ("videorope", {"delta": -1}, [Text(1)], ValueError, "delta of videorope must be positive and finite, got -1"),
    ("aligned", {"cell": "1"}, [Text(1)], TypeError, "cell of aligned must be a number, got '1'"),
    ("aligned", {}, [Audio(3)], ValueError, "rate must be given where a rule counts seconds"),
    ("qwen2_5_vl", {}, [Video(1, 2, 3)], ValueError, "fps must be given where a rule counts seconds"),
    ("qwen2_5_omni", {}, [Together(Video(4, 1, 1, fps=2.0), Audio(76, rate=25.0))], ValueError, "3.04 s"),
    ("qwen2_5_omni", {"seconds_per_chunk": 0.03}, [Text(1)], ValueError, r"seconds_per_chunk \(0\.03\) must have room"),
    ("qwen2_5_omni", {}, [Video(3, 1, 1, fps=1e-40)], ValueError, "fps=1e-40.* lasts longer than positions can count"),
    ("qwen2_5_omni", {}, [Audio(3, rate=1e-40)], ValueError, "rate=1e-40.* lasts longer than positions can count"),
    ("qwen2_5_vl", {}, [Video(3, 1, 1, fps=1e-20)], ValueError, "fps=1e-20.* lasts longer than positions can count"),
    ("aligned", {}, [Audio(3, rate=5e-324)], ValueError, "lasts longer than float64 can say"),
    ("qwen2_5_omni", {}, [Together(Video(4, 1, 1, fps=2.0))], ValueError, "one Video and one Audio together"),
    ("qwen2_5_omni", {}, [Together(Audio(4, rate=1.0), Audio(4, rate=1.0))], ValueError, "one Video and one Audio"),
]


@pytest.mark.parametrize("rule, options, row, kind, message", ERRORS)
def test_errors(rule, options, row, kind, message):
    with pytest.raises(kind, match=message):
        mmpos.multimodal_coords([row], rule, **options)
