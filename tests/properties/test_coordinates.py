"""Coordinates, their transforms and the calendar, with any arguments."""

from datetime import UTC, datetime

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

import mmpos
from mmpos.calendar.fields import WHOLE

from .outcomes import FLOATS, INTEGERS, Call, arguments_of, check_outcome, examples, tensors

DEVICES = st.sampled_from([None, "cpu", "meta", torch.device("cpu")])
SIZES = st.integers(0, 5)
REALS = st.sampled_from([0, 1, -3, 0.5, -2.25, 1e300, 2**62])
PER_AXIS = [
    st.one_of(REALS, st.tuples(*[REALS] * axes), st.lists(REALS, min_size=axes, max_size=axes)) for axes in (2, 3)
]
COORDS = tensors([*FLOATS, *INTEGERS], st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(1, 3)))
POSITIONS = tensors(INTEGERS, st.tuples(st.integers(0, 3), st.integers(1, 5), st.just(1)), [0, 1, 2])
MASKS = tensors([torch.bool], st.lists(st.integers(0, 4), min_size=2, max_size=4).map(tuple))
TIMES = st.one_of(
    tensors([*FLOATS, *INTEGERS], st.lists(st.integers(0, 4), min_size=1, max_size=2).map(tuple)),
    st.lists(st.dates(), min_size=1, max_size=3),
    st.lists(st.datetimes(), min_size=1, max_size=3),
    st.lists(st.datetimes(timezones=st.just(UTC)), min_size=1, max_size=3),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
    st.sampled_from([np.array(["2024-02-29", "NaT"], "datetime64[s]"), np.array([1, 2], "datetime64[Y]"), [None, 1]]),
)
UNITS = st.sampled_from(["s", "ms", "us", "ns"])
PER = st.sampled_from(["ns", "us", "ms", "s", "min", "h", "d", "w"])
FIELDS = st.lists(st.sampled_from([*WHOLE, "fraction_of_year"]), max_size=3)
ZONES = st.sampled_from([None, "Europe/Berlin", "+05:30", UTC, "UTC"])
GENERATORS = st.sampled_from([None, None, torch.Generator()])


def lattice(axes, *sizes):
    def right(result, *, spacing, origin, device, **given):
        exact = all(isinstance(n, int) for n in (*flat(spacing), *flat(origin)))
        count = 1
        for size in sizes:
            count *= given[size]
        return result.shape == (count, axes) and result.dtype == (torch.int64 if exact else torch.float64)

    return right


def flat(value):
    return value if isinstance(value, list | tuple) else [value]


def like(result, *, coords, **_):
    return (
        result.shape == coords.shape and result.dtype in (torch.int64, torch.float64) and result.device == coords.device
    )


def spread(result, *, coords, length, **_):
    inside = result.is_meta or not result.numel() or (result.min() >= 0 and result.max() < length)
    return result.shape == coords.shape and result.dtype == torch.int64 and bool(inside)


def fields_right(result, *, fields, **_):
    return result.shape[-1] == len(list(fields))


def packed(result, *, lengths, **_):
    coords, document = result
    return coords.ndim == 2 and coords.shape[0] == len(document) == int(sum(lengths))


COORDINATES = {
    "sequence_coords": Call(
        mmpos.sequence_coords,
        {"length": SIZES, "offset": st.one_of(st.integers(-(2**62), 2**62), tensors(INTEGERS)), "device": DEVICES},
        lambda result, length, **_: result.shape[-2:] == (length, 1) and result.dtype == torch.int64,
    ),
    "grid_coords": Call(
        mmpos.grid_coords,
        {"height": SIZES, "width": SIZES, "spacing": PER_AXIS[0], "origin": PER_AXIS[0], "device": DEVICES},
        lattice(2, "height", "width"),
    ),
    "video_coords": Call(
        mmpos.video_coords,
        {
            "frames": SIZES,
            "height": SIZES,
            "width": SIZES,
            "spacing": PER_AXIS[1],
            "origin": PER_AXIS[1],
            "device": DEVICES,
        },
        lattice(3, "frames", "height", "width"),
    ),
    "volume_coords": Call(
        mmpos.volume_coords,
        {
            "depth": SIZES,
            "height": SIZES,
            "width": SIZES,
            "spacing": PER_AXIS[1],
            "origin": PER_AXIS[1],
            "device": DEVICES,
        },
        lattice(3, "depth", "height", "width"),
    ),
    "packed_coords": Call(
        mmpos.packed_coords,
        {
            "lengths": st.one_of(st.lists(SIZES, max_size=4), tensors(INTEGERS, st.tuples(SIZES), [0, 1, 3], ("cpu",))),
            "gap": st.integers(-(2**40), 2**40),
            "device": st.sampled_from([None, "cpu"]),
        },
        packed,
    ),
    "padded_coords": Call(
        mmpos.padded_coords,
        {"mask": MASKS, "device": DEVICES},
        lambda result, mask, **_: (
            result.shape == (len(mask), mask[:1].flatten().shape[0] if len(mask) else result.shape[1], mask.ndim - 1)
        ),
    ),
    "sphere_coords": Call(
        mmpos.sphere_coords,
        {
            "latitude": st.one_of(st.floats(-90, 90), tensors(FLOATS, st.just((3,)), [0, 45.5, -90])),
            "longitude": st.one_of(st.floats(), st.lists(st.floats(-720, 720), min_size=3, max_size=3)),
            "device": DEVICES,
        },
        lambda result, **_: (
            result.shape[-1] == 3
            and result.dtype == torch.float64
            and (result.is_meta or bool((result.abs() <= 1).logical_or(result.isnan()).all()))
        ),
    ),
    "normalise": Call(
        mmpos.normalise,
        {
            "coords": COORDS,
            "size": st.lists(st.integers(1, 5), min_size=1, max_size=3),
            "by": st.sampled_from(["separate", "max", "min"]),
        },
        like,
    ),
    "normalise_padded": Call(
        mmpos.normalise_padded,
        {
            "coords": tensors([*FLOATS, *INTEGERS], st.just((2, 6, 2))),
            "mask": tensors([torch.bool], st.just((2, 3, 2))),
            "offset": st.sampled_from([1.0, 0.5, 0]),
            "eps": st.sampled_from([1e-6, 0]),
        },
        like,
    ),
    "rescale": Call(
        mmpos.rescale, {"coords": COORDS, "factor": st.one_of(REALS, st.lists(REALS, min_size=1, max_size=3))}, like
    ),
    "shift": Call(
        mmpos.shift,
        {
            "coords": COORDS,
            "reach": st.sampled_from([0, 1, 2.5, 100, 2**62]),
            "whole": st.booleans(),
            "per_token": st.booleans(),
            "generator": GENERATORS,
        },
        lambda result, coords, **_: result.shape == coords.shape,
    ),
    "jitter": Call(
        mmpos.jitter,
        {"coords": COORDS, "factor": st.sampled_from([1, 1.5, 10]), "shared": st.booleans(), "generator": GENERATORS},
        like,
    ),
    "subsample": Call(
        mmpos.subsample, {"coords": POSITIONS, "length": st.integers(5, 20), "generator": GENERATORS}, spread
    ),
    "skip": Call(
        mmpos.skip,
        {"coords": POSITIONS, "length": st.integers(5, 20), "chunks": st.integers(1, 3), "generator": GENERATORS},
        spread,
    ),
}

CALENDAR = {
    "time_coords": Call(
        mmpos.time_coords,
        {
            "timestamps": TIMES,
            "unit": UNITS,
            "origin": st.sampled_from([None, 0, 1711843200, datetime(2024, 1, 1)]),
            "per": PER,
            "device": DEVICES,
        },
        lambda result, **_: result.shape[-1] == 1 and result.dtype in (torch.int64, torch.float64),
    ),
    "calendar_fields": Call(
        mmpos.calendar_fields,
        {"timestamps": TIMES, "fields": FIELDS, "unit": UNITS, "timezone": ZONES, "device": DEVICES},
        lambda result, fields, **_: fields_right(result, fields=fields) and result.dtype == torch.int64,
        frozenset({"calendar field"}),
    ),
    "calendar_coords": Call(
        mmpos.calendar_coords,
        {"timestamps": TIMES, "fields": FIELDS, "unit": UNITS, "timezone": ZONES, "device": DEVICES},
        lambda result, fields, **_: (
            fields_right(result, fields=fields)
            and result.dtype == torch.float64
            and (result.is_meta or bool(((result >= 0) & (result < 1) | result.isnan()).all()))
        ),
        frozenset({"calendar field"}),
    ),
    "calendar_ramps": Call(
        mmpos.calendar_ramps,
        {"timestamps": TIMES, "fields": FIELDS, "unit": UNITS, "timezone": ZONES, "device": DEVICES},
        lambda result, fields, **_: (
            fields_right(result, fields=fields)
            and result.dtype == torch.float64
            and (result.is_meta or bool(((result.abs() <= 0.5) | result.isnan()).all()))
        ),
        frozenset({"calendar field"}),
    ),
    "event_coords": Call(
        mmpos.event_coords,
        {
            "timestamps": TIMES,
            "events": st.dictionaries(
                st.sampled_from(["a", "b"]), st.lists(st.dates(), min_size=1, max_size=3), min_size=1
            ),
            "unit": UNITS,
            "per": PER,
            "timezone": ZONES,
            "device": DEVICES,
        },
        lambda result, events, **_: result.shape[-1] == len(events) and result.dtype == torch.float64,
    ),
    "parse_frequency": Call(
        mmpos.parse_frequency,
        {
            "frequency": st.one_of(
                st.sampled_from(["15min", "h", "MS", "W-SUN", "3D", "1.5h", "B", "-2h", "1e3s", "m"]),
                st.from_regex(r"[0-9.+-]{0,4}[A-Za-z]{0,3}(-[A-Z]{3})?", fullmatch=True),
                st.lists(st.dates(), min_size=3, max_size=5).map(sorted),
                TIMES,
            ),
            "unit": UNITS,
        },
        lambda result, **_: isinstance(result, mmpos.Frequency),
        frozenset({"timestamps"}),
    ),
}


@examples(70)
@given(data=st.data())
def test_coordinates_are_right_or_refused(data):
    call = COORDINATES[data.draw(st.sampled_from(sorted(COORDINATES)))]
    check_outcome(call, data.draw(arguments_of(call)))


@examples(40)
@given(data=st.data())
def test_the_calendar_is_right_or_refuses(data):
    call = CALENDAR[data.draw(st.sampled_from(sorted(CALENDAR)))]
    check_outcome(call, data.draw(arguments_of(call)))
