"""A decoder on mixed rows: what stands where, who sees whom, and answers from a cache."""

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import mmpos
from mmpos import Audio, Bare, Image, Text, Together, Video
from mmpos.models import MixedRows, MultimodalTransformer

RULES = {
    "sequential": "sequential",
    "qwen2_vl": {"name": "qwen2_vl", "after": "max"},
    "qwen3_vl": "qwen3_vl",
    "qwen2_5_omni": "qwen2_5_omni",
    "videorope": "videorope",
    "aligned": {"name": "aligned", "text_step": 0.5},
}
ROPE = {"name": "RoPE", "axes": 3, "base": 10.0, "spectrum": {"name": "Sections", "sections": [1, 1, 2]}}
SLOTS = {
    "rope": {"rotary": ROPE},
    "none": {},
    "sinusoidal": {"additive": {"name": "Sinusoidal", "axes": 3}, "dim": 36, "num_heads": 3},
    "alibi": {"bias": {"name": "ALiBi", "axes": 3}, "scale": {"name": "SSMax", "axes": 3}},
    "grouped": {"rotary": ROPE, "block": {"num_kv_heads": 2, "qk_norm": True}},
}
PATCH, SOUND = 5, 3


def make(slots="rope", rule="aligned", **arguments):
    """A small decoder with weights large enough for positions to matter."""
    torch.manual_seed(3)
    options = {"num_tokens": 19, "patch_width": PATCH, "sound_width": SOUND, "dim": 32, "depth": 2, **SLOTS[slots]}
    model = MultimodalTransformer(**{**options, "rule": RULES.get(rule, rule), **arguments})
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.3)
    return model.eval()


def fill(segment, seed=0):
    """A segment with content of its own."""
    draws = torch.Generator().manual_seed(100 * seed + segment.size)
    if isinstance(segment, Together):
        return segment, [fill(part, seed)[1] for part in segment.segments]
    if isinstance(segment, Text):
        return segment, torch.randint(19, (segment.length,), generator=draws)
    count = segment.size if segment.keep is None else int(segment.keep.sum())
    return segment, torch.randn(count, SOUND if isinstance(segment, Audio) else PATCH, generator=draws)


KEEP = torch.tensor([[True, False, True], [True, True, False]])
FILM = Together(Video(4, 1, 2, fps=1.0), Audio(8, rate=2.0))
ROWS = [
    [fill(Text(3)), fill(Image(2, 3)), fill(Text(2), 1)],
    [fill(Text(1), 2), fill(FILM), fill(Text(4), 3)],
    [fill(Image(2, 3, keep=KEEP), 4), fill(Audio(3, rate=4.0), 5), fill(Text(2), 6)],
]


@pytest.mark.parametrize("rule", RULES)
def test_tokens_stand_where_the_rule_places_them(rule):
    model = make(rule=rule, depth=0)
    place = model.place(MixedRows(ROWS))
    options = {} if isinstance(RULES[rule], str) else dict(RULES[rule])
    name = options.pop("name", rule)
    segments = [[segment for segment, _ in row] for row in ROWS]
    coords, real, _ = mmpos.multimodal_coords(segments, name, padding="left", **options)
    assert torch.equal(place.coords, coords)
    assert torch.equal(place.real, real)
    got = model.forward_features(MixedRows(ROWS))

    def embed(segment, content):
        if isinstance(segment, Text):
            return model.embed(content) * 32**0.5
        return (model.sound_embed if isinstance(segment, Audio) else model.patch_embed)(content)

    for number, row in enumerate(ROWS):
        parts = []
        for segment, content in row:
            if not isinstance(segment, Together):
                parts.append(embed(segment, content))
                continue
            seen, heard = (embed(*pair) for pair in zip(segment.segments, content, strict=True))
            if rule == "qwen2_5_omni":  # two seconds of each by turns
                parts += [seen[:4], heard[:4], seen[4:], heard[4:]]
            else:
                parts += [seen, heard]
        want = model.norm(torch.cat(parts))
        torch.testing.assert_close(got[number, -len(want) :], want)
        assert len(want) == real[number].sum()


@pytest.mark.parametrize("two_way", [False, True])
@pytest.mark.parametrize("slots", SLOTS)
def test_a_row_of_a_batch_is_read_as_alone(slots, two_way):
    model = make(slots, two_way=two_way)
    together = model(MixedRows(ROWS))
    for number, row in enumerate(ROWS):
        alone = model(MixedRows([row]))[0]
        torch.testing.assert_close(together[number, -len(alone) :], alone, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(model(MixedRows(ROWS), last=2), together[:, -2:])


@pytest.mark.parametrize("rule", RULES)
def test_positions_are_those_of_the_rule(rule):
    row = MixedRows([ROWS[1]])
    base, model = make(rule="sequential"), make(rule=rule)
    same = torch.allclose(base(row), model(row), atol=1e-4)
    assert same == (rule == "sequential")


@pytest.mark.parametrize("slots", SLOTS)
def test_a_token_does_not_see_what_comes_after_it(slots):
    row = ROWS[0]
    changed = [row[0], (row[1][0], row[1][1].flip(0)), row[2]]
    model, both = make(slots), MixedRows([row, changed])
    features = model.forward_features(both)
    same = torch.isclose(features[0], features[1], atol=1e-5).all(-1)
    assert same.tolist() == [True] * 3 + [False] * 8
    # Both ways within the picture, and the last patch is seen by the first.
    last = row[1][1].clone()
    last[-1] += 1
    changed = [row[0], (row[1][0], last), row[2]]
    for two_way, seen in ((False, 8), (True, 3)):
        features = make(slots, two_way=two_way).forward_features(MixedRows([row, changed]))
        same = torch.isclose(features[0], features[1], atol=1e-6).all(-1)
        assert same.tolist() == [True] * seen + [False] * (11 - seen)


def test_pictures_do_not_see_later_pictures():
    row = [fill(Image(1, 2)), fill(Image(1, 2), 1), fill(Text(1))]
    changed = [row[0], (row[1][0], row[1][1] + 1), row[2]]
    features = make(two_way=True).forward_features(MixedRows([row, changed]))
    same = torch.isclose(features[0], features[1], atol=1e-6).all(-1)
    assert same.tolist() == [True, True, False, False, False]


@pytest.mark.parametrize("two_way", [False, True])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("slots", ["rope", "alibi", "sinusoidal", "grouped"])
def test_answers_are_those_of_full_passes(slots, rule, two_way):
    model = make(slots, rule, two_way=two_way)
    answers = model.answer(MixedRows(ROWS), 5)
    for row, answer in zip(ROWS, answers, strict=True):
        said = []
        for _ in range(5):
            tail = [(Text(len(said)), torch.tensor(said))] if said else []
            said.append(int(model(MixedRows([[*row, *tail]]), last=1)[0, 0].argmax()))
        assert answer.tolist() == said


def test_an_answer_ends_with_the_stop_token():
    model, rows = make(), MixedRows(ROWS)
    whole = model.answer(rows, 6)
    stop = int(whole[0][2])
    for answer, want in zip(model.answer(rows, 6, stop=stop), whole, strict=True):
        end = want.tolist().index(stop) + 1 if stop in want.tolist() else 6
        assert answer.tolist() == want.tolist()[:end]
    assert [len(answer) for answer in model.answer(rows, 1)] == [1, 1, 1]
    with pytest.raises(ValueError, match="max_new_tokens must be at least 1, got 0"):
        model.answer(rows, 0)


def test_gradients_reach_all_that_is_read():
    model = make()
    model(MixedRows(ROWS), last=1).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_rows_move_to_a_device():
    moved = MixedRows(ROWS).to("meta")
    assert {part.device.type for part in (moved.tokens, moved.patches, moved.sound)} == {"meta"}
    assert (len(moved), moved.tokens.shape, moved.patches.shape, moved.sound.shape) == (3, (12,), (18, 5), (11, 3))


@pytest.mark.parametrize(
    "row, error, message",
    [
        ([(Bare(2), torch.zeros(2, 5))], TypeError, "made of Text, Image, Video, Audio and Together, got Bare"),
        ([(Text(2), torch.zeros(2))], TypeError, r"content of Text\(length=2.*\) must be int64, got torch.float32"),
        ([(Image(2, 3), torch.zeros(5, 5))], ValueError, r"must have shape \(6, width\), got \(5, 5\)"),
        ([(Image(2, 3, keep=KEEP), torch.zeros(6, 5))], ValueError, r"must have shape \(4, width\), got \(6, 5\)"),
        ([(FILM, [torch.zeros(8, 5)])], ValueError, "needs a content for each of its segments, got 1"),
        ([(Text(3), torch.zeros(2).long())], ValueError, r"must have shape \(3,\), got \(2,\)"),
    ],
)
def test_contents_that_do_not_fit(row, error, message):
    with pytest.raises(error, match=message):
        MixedRows([row])


def test_models_that_do_not_fit():
    with pytest.raises(ValueError, match="unknown rule 'aligne'; did you mean 'aligned'"):
        make(rule="aligne")
    with pytest.raises(TypeError, match="cell"):
        MultimodalTransformer(rule={"name": "qwen2_vl", "cell": 2})
    with pytest.raises(ValueError, match="text_step"):
        MultimodalTransformer(rule={"name": "aligned", "text_step": -1})
    with pytest.raises(ValueError, match="rule must be a name or a mapping with one"):
        MultimodalTransformer(rule={"text_step": 1})
    with pytest.raises(ValueError, match=r"patch_width \(None\) must be 5, as wide as what stands in the rows"):
        make(patch_width=None)(MixedRows(ROWS))
    for call in (make(), lambda rows: make().answer(rows, 3), torch.compile(make(), backend="eager")):
        with pytest.raises(TypeError, match="rows must be MixedRows, got list"):
            call(ROWS)
    with pytest.raises(ValueError, match=r"sound_width \(4\) must be 3"):
        make(sound_width=4)(MixedRows(ROWS))


@pytest.mark.parametrize("two_way", [False, True])
def test_blocks_are_compiled_once_for_all_sizes(two_way):
    """Where tokens stand is told by Python objects, so that it is found outside; what follows is traced as a whole."""
    model, counter = make("alibi", depth=1, two_way=two_way), CompileCounterWithBackend("eager")
    compiled, graphs = torch.compile(model, dynamic=True, backend=counter), []
    for rows in ([*ROWS, ROWS[0]], ROWS[:2]):  # as many rows as axes would be taken for the same size
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(compiled(MixedRows(rows)), model(MixedRows(rows)), rtol=0, atol=0)
        graphs.append(counter.frame_count)
    assert graphs[0] == graphs[1] <= 4  # the blocks, the head, and what the checks of shapes add
