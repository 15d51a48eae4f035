"""Spectra, scalings, layouts, tables, masks, attention, rows of segments and the factory, with any arguments."""

from datetime import datetime

import torch
from hypothesis import given
from hypothesis import strategies as st

import mmpos
from mmpos import masks, scaling
from mmpos.factory import ENCODINGS
from mmpos.frequencies import Bands, Geometric, Harmonics, Periods, Seasons
from mmpos.spectra import Axial, Given, Learned, Mixed, Sections, Shared

from .outcomes import FLOATS, INTEGERS, Call, arguments_of, check_outcome, examples, tensors

ABOVE_ZERO = st.sampled_from([1, 2, 4.0, 0.5, 24, 168.5, 10000.0])
MAYBE = st.one_of(st.none(), ABOVE_ZERO)
COUNTS = st.integers(1, 6)
SERIES = st.sampled_from([None, Geometric(100.0), Periods(1, 100), Harmonics(24), Bands(8)])
SERIES_NEEDED = st.sampled_from([Geometric(100.0), Periods(1, 100), Harmonics(24)])
WHOLE = st.lists(st.integers(0, 4), min_size=1, max_size=3)
MASKS_OF = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)


def serves(result, **_):
    """A value of a constructor works in a rotation, or is refused there."""
    from .outcomes import check_refusal

    rope = {}
    if isinstance(result, scaling.Scaling):
        rope = {"scaling": result}
    elif isinstance(result, mmpos.Geometric | Periods | Bands | Harmonics | Seasons):
        rope = {"spectrum": Axial(series=result)}
    elif isinstance(result, Axial | Given | Learned | Mixed | Sections | Shared):
        rope = {"spectrum": result, "axes": 2, "num_heads": 3}
    elif isinstance(result, mmpos.XPos):
        rope = {"xpos": result}
    if not rope:
        return True
    names = {field for value in rope.values() if hasattr(value, "__dict__") for field in vars(value)}
    names |= {"num_heads", "head_dim", "axes", "series", "spectrum", "scaling", "log", "start", "Seasons", "YaRN"}
    try:
        encoding = mmpos.RoPE(head_dim=12, **rope)
    except Exception as error:
        check_refusal(error, {*names, type(next(iter(rope.values()))).__name__})
        return True
    rotation = encoding(torch.arange(3 * encoding.axes).reshape(3, encoding.axes), length=8)
    return bool(rotation.cos.isfinite().all()) and rotation.cos.shape[-2] == 3


VALUES = {
    "PositionInterpolation": Call(scaling.PositionInterpolation, {"factor": ABOVE_ZERO}, serves),
    "NTK": Call(scaling.NTK, {"factor": ABOVE_ZERO}, serves),
    "DynamicNTK": Call(scaling.DynamicNTK, {"factor": ABOVE_ZERO, "train_length": COUNTS}, serves),
    "YaRN": Call(
        scaling.YaRN,
        {
            "factor": ABOVE_ZERO,
            "train_length": ABOVE_ZERO,
            "beta_fast": ABOVE_ZERO,
            "beta_slow": ABOVE_ZERO,
            "truncate": st.booleans(),
            "attention_factor": MAYBE,
            "mscale": MAYBE,
            "mscale_all_dim": MAYBE,
        },
        serves,
    ),
    "LongRoPE": Call(
        scaling.LongRoPE,
        {
            "short_factors": st.lists(ABOVE_ZERO, min_size=6, max_size=6),
            "long_factors": st.lists(ABOVE_ZERO, min_size=6, max_size=6),
            "train_length": COUNTS,
            "factor": MAYBE,
            "attention_factor": MAYBE,
        },
        serves,
    ),
    "Llama3": Call(
        scaling.Llama3,
        {"factor": ABOVE_ZERO, "low_freq_factor": ABOVE_ZERO, "high_freq_factor": ABOVE_ZERO, "train_length": COUNTS},
        serves,
    ),
    "Proportional": Call(scaling.Proportional, {"share": st.sampled_from([0, 0.25, 1])}, serves),
    "RIFLEx": Call(scaling.RIFLEx, {"index": st.integers(0, 8), "length": ABOVE_ZERO}, serves),
    "ClipLow": Call(scaling.ClipLow, {"train_length": ABOVE_ZERO}, serves),
    "Geometric": Call(
        Geometric, {"base": ABOVE_ZERO, "endpoint": st.booleans(), "width": st.one_of(st.none(), COUNTS)}, serves
    ),
    "Periods": Call(
        Periods,
        {"min_period": ABOVE_ZERO, "max_period": st.sampled_from([200, 1e6]), "endpoint": st.booleans()},
        serves,
    ),
    "Bands": Call(
        Bands, {"max_freq": st.sampled_from([2, 7.5]), "spacing": st.sampled_from(["linear", "octaves"])}, serves
    ),
    "Harmonics": Call(Harmonics, {"period": ABOVE_ZERO}, serves),
    "Seasons": Call(
        Seasons,
        {
            "periods": st.one_of(ABOVE_ZERO, st.lists(ABOVE_ZERO, min_size=2, max_size=2)),
            "harmonics": st.one_of(COUNTS, st.lists(COUNTS, min_size=2, max_size=2)),
            "rest": SERIES,
        },
        serves,
    ),
    "Octaves": Call(mmpos.Octaves, {"times_pi": st.booleans()}),
    "Axial": Call(
        Axial,
        {
            "channels": st.sampled_from([None, None, (8, 4), (2, 2)]),
            "weights": st.sampled_from([None, None, (1, 2)]),
            "remainder": st.sampled_from([None, None, 1]),
            "order": st.sampled_from([None, (1, 0)]),
            "series": SERIES,
            "dealt": st.booleans(),
        },
        serves,
    ),
    "Sections": Call(
        Sections,
        {"sections": st.sampled_from([(3, 3), (4, 2), (6, 0)]), "interleaved": st.booleans(), "series": SERIES},
        serves,
    ),
    "Shared": Call(Shared, {"series": st.one_of(SERIES, st.lists(SERIES_NEEDED, min_size=2, max_size=2))}, serves),
    "Given": Call(
        Given,
        {
            "freqs": st.one_of(
                st.sampled_from([((1.0, 0.5), (0.25, 0.0))]), tensors(FLOATS, st.just((2, 3)), [1.0, 0.5])
            )
        },
        serves,
    ),
    "Learned": Call(
        Learned,
        {"start": st.sampled_from([Axial(), Sections((3, 3))]), "log": st.booleans(), "per_head": st.booleans()},
        serves,
    ),
    "XPos": Call(mmpos.XPos, {"scale_base": ABOVE_ZERO, "centre": st.sampled_from([0, 1.5, -3])}, serves),
    "Text": Call(mmpos.Text, {"length": COUNTS, "shared": st.booleans()}),
    "Bare": Call(mmpos.Bare, {"length": COUNTS}),
    "Image": Call(
        mmpos.Image,
        {
            "height": st.just(2),
            "width": st.just(3),
            "keep": st.one_of(st.none(), tensors([torch.bool], st.sampled_from([(2, 3), (6,)]))),
        },
    ),
    "Video": Call(
        mmpos.Video,
        {"frames": COUNTS, "height": COUNTS, "width": COUNTS, "fps": MAYBE, "keep": st.none()},
    ),
    "Audio": Call(mmpos.Audio, {"length": COUNTS, "rate": MAYBE, "keep": st.none()}),
    "Series": Call(
        mmpos.Series,
        {
            "timestamps": st.one_of(tensors(INTEGERS, st.just((3,))), st.lists(st.datetimes(), min_size=1, max_size=3)),
            "unit": st.sampled_from(["s", "ms", "us", "ns"]),
            "origin": st.sampled_from([None, 0, datetime(2024, 1, 1)]),
            "keep": st.none(),
        },
    ),
}

SEGMENTS = [
    mmpos.Text(2), mmpos.Text(2, shared=True), mmpos.Bare(1), mmpos.Image(2, 3), mmpos.Video(2, 1, 2, fps=1.5),
    mmpos.Video(2, 1, 2), mmpos.Audio(3, rate=2.0), mmpos.Audio(2), mmpos.Series(torch.tensor([5, 7])),
    mmpos.Together(mmpos.Video(2, 1, 1, fps=2.0), mmpos.Audio(4, rate=4.0)),
]  # fmt: skip
HEADS = st.just((2, 4, 3, 8))


def attended(result, *, q, v, **_):
    return result.shape == (*q.shape[:-1], v.shape[-1]) and result.dtype == v.dtype


def placed(result, *, rows, packed, **_):
    coords, mask, position = result
    return coords.shape[-1] == 3 and mask.shape == coords.shape[:-1] and position.shape == (len(rows),)


def register(name, factory, kind):
    before = dict(ENCODINGS)
    try:
        mmpos.register_encoding(name, factory, kind=kind)
    finally:
        ENCODINGS.clear()
        ENCODINGS.update(before)


CONDITIONS = [
    masks.causal(),
    masks.window(2),
    masks.window(2, two_sided=True) & torch.ones(3, 4, dtype=torch.bool),
    masks.documents(torch.tensor([0, 0, 1])),
    masks.padding(torch.tensor([[True, False, True]])),
    masks.causal() & masks.padding(torch.ones(2, 3, dtype=torch.bool)),
]

FUNCTIONS = {
    "causal": Call(masks.causal, {}),
    "window": Call(masks.window, {"size": COUNTS, "two_sided": st.booleans()}),
    "documents": Call(
        masks.documents,
        {"ids": tensors(INTEGERS, st.just((2, 3))), "k_ids": st.one_of(st.none(), tensors(INTEGERS, st.just((2, 4))))},
    ),
    "padding": Call(masks.padding, {"mask": tensors([torch.bool], st.just((2, 3)))}),
    **{
        f"dense {number}": Call(
            condition.dense,
            {"queries": st.integers(0, 4), "keys": st.integers(0, 4), "num_prefix_tokens": st.integers(0, 2)},
            lambda result, queries, keys, **_: result.shape[-2:] == (queries, keys) and result.dtype == torch.bool,
            frozenset({"ids", "k_ids", "mask"}),
        )
        for number, condition in enumerate(CONDITIONS)
    },
    "attention": Call(
        mmpos.attention,
        {
            "q": tensors(FLOATS[1:], HEADS, [0.5, -1.0, 2.0], ("cpu",)),
            "k": tensors(
                FLOATS[1:],
                st.sampled_from([(2, 4, 3, 8), (2, 2, 3, 8), (2, 4, 5, 8), (1, 4, 3, 8)]),
                [0.5, -1.0, 2.0],
                ("cpu",),
            ),
            "v": tensors(FLOATS[1:], st.sampled_from([(2, 4, 3, 8), (2, 2, 3, 8), (2, 4, 3, 6)]), [0.5, 1.0], ("cpu",)),
            "rotation": st.sampled_from([None, mmpos.RoPE(8)(torch.arange(3)[:, None])]),
            "bias": st.sampled_from([None, mmpos.ALiBi(4), mmpos.T5Bias(4), torch.zeros(4, 3, 3)]),
            "logit_scale": st.sampled_from([None, mmpos.LogScale(8), torch.ones(4, 3)]),
            "q_coords": st.sampled_from([None, torch.arange(3)[:, None]]),
            "k_coords": st.none(),
            "tokens": st.none(),
            "num_prefix_tokens": st.sampled_from([0, 0, 1]),
            "mask": st.sampled_from([None, masks.causal(), torch.ones(3, 3, dtype=torch.bool)]),
            "is_causal": st.booleans(),
            "scale": MAYBE,
            "attn_drop": st.sampled_from([0.0, 0.5]),
            "backend": st.sampled_from(["auto", "dense", "sdpa", "blocks", "factors"]),
        },
        attended,
        frozenset({"num_kv_heads", "coords", "x"}),
    ),
    "convert_layout": Call(
        mmpos.convert_layout,
        {
            "weights": tensors([*FLOATS, *INTEGERS], st.sampled_from([(12, 3), (12,), (0, 2), (18, 2)])),
            "to": st.sampled_from(["half", "interleaved"]),
            "head_dim": st.sampled_from([6, 4]),
            "rotary_dim": st.sampled_from([None, 4, 2]),
            "num_heads": st.sampled_from([None, 1, 2]),
        },
        lambda result, weights, **_: result.shape == weights.shape and result.dtype == weights.dtype,
        frozenset({"layout"}),
    ),
    "resample_table": Call(
        mmpos.resample_table,
        {
            "table": tensors(FLOATS, st.sampled_from([(3, 4, 5), (3, 5), (2, 3, 4, 5), (1, 1, 2)])),
            "size": st.lists(COUNTS, min_size=1, max_size=3),
            "mode": st.sampled_from(["bicubic", "bilinear"]),
            "antialias": st.booleans(),
            "align_corners": st.booleans(),
            "keep": st.sampled_from([0, 0, 1]),
        },
        lambda result, table, size, **_: result.shape == (*size, table.shape[-1]) and result.dtype == table.dtype,
    ),
    "resample_bias_table": Call(
        mmpos.resample_bias_table,
        {
            "table": tensors(FLOATS, st.sampled_from([(15, 2), (18, 2), (5, 3)])),
            "window": st.sampled_from([(4, 3), (2, 3), (5,)]),
            "old_window": st.sampled_from([(2, 3), (3,)]),
            "num_prefix_rows": st.sampled_from([0, 3]),
            "mode": st.sampled_from(["bicubic", "bilinear", "geometric"]),
            "antialias": st.booleans(),
        },
        lambda result, table, **_: result.shape[-1] == table.shape[-1],
    ),
    "resample_pos_embed": Call(
        mmpos.resample_pos_embed,
        {
            "pos_embed": tensors(FLOATS, st.sampled_from([(1, 13, 2), (12, 2)])),
            "size": st.sampled_from([(4, 5), (7,)]),
            "old_size": st.sampled_from([(3, 4), (12,)]),
            "num_prefix_tokens": st.sampled_from([0, 1]),
        },
        lambda result, pos_embed, **_: result.shape[-1] == 2 and result.ndim == pos_embed.ndim,
    ),
    "split_pos_embed": Call(
        mmpos.split_pos_embed,
        {
            "pos_embed": tensors(FLOATS, st.sampled_from([(1, 13, 2), (12, 2)])),
            "size": st.sampled_from([(3, 4), (12,)]),
            "num_prefix_tokens": st.sampled_from([0, 1]),
        },
        lambda result, **_: len(result) == 2,
    ),
    "sandwich_bias": Call(
        mmpos.sandwich_bias, {"num_heads": COUNTS, "base": ABOVE_ZERO, "dim": st.sampled_from([8, 12])}
    ),
    "multimodal_coords": Call(
        mmpos.multimodal_coords,
        {
            "rows": st.lists(st.lists(st.sampled_from(SEGMENTS), max_size=4), max_size=3),
            "rule": st.sampled_from(
                ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen2_5_omni", "sequential", "videorope", "v2pe", "aligned"]
            ),
            "padding": st.sampled_from(["right", "left"]),
            "packed": st.booleans(),
            "device": st.just("cpu"),
        },
        placed,
        frozenset({"Audio", "Video", "Image", "Series", "Together", "segment", "fps", "rate"}),
    ),
    "create_encoding": Call(
        mmpos.create_encoding,
        {"name": st.sampled_from(["RoPE", "rope_2d", "ALiBi", "rope"])},
        lambda result, **_: isinstance(result, torch.nn.Module),
        frozenset({"encoding", "head_dim", "num_heads"}),
    ),
    "list_encodings": Call(
        mmpos.list_encodings,
        {"kind": st.sampled_from([None, "additive", "rotary", "bias", "scale"])},
        lambda result, **_: result == sorted(result),
    ),
    "register_encoding": Call(
        register,
        {
            "name": st.sampled_from(["RoPE", "mine"]),
            "factory": st.just(mmpos.RoPE),
            "kind": st.sampled_from([None, "rotary"]),
        },
        names=frozenset({"encoding name", "kind", mmpos.RoPE.__name__}),
    ),
}


@examples(60)
@given(data=st.data())
def test_values_are_made_and_serve_or_are_refused(data):
    call = VALUES[data.draw(st.sampled_from(sorted(VALUES)))]
    check_outcome(call, data.draw(arguments_of(call)))


@examples(70)
@given(data=st.data())
def test_functions_are_right_or_refuse(data):
    call = FUNCTIONS[data.draw(st.sampled_from(sorted(FUNCTIONS)))]
    check_outcome(call, data.draw(arguments_of(call)))
