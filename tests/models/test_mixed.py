"""Rows of segments with their contents: what does not fit is refused by name."""

import pytest
import torch

from mmpos import Audio, Bare, Image, Text, Together, Video
from mmpos.models import MixedRows

TOKENS = torch.tensor([7, 8, 9])
FILM = Together(Video(1, 1, 2, fps=1.0), Audio(4, rate=4.0))


def test_contents_stand_one_behind_the_other_and_move_together():
    picture, film = torch.randn(6, 5), [torch.randn(2, 5), torch.randn(4, 3)]
    rows = MixedRows([[(Text(3), TOKENS), (Image(2, 3), picture)], [], [(FILM, film), (Text(3), TOKENS + 1)]])
    assert torch.equal(rows.tokens, torch.tensor([7, 8, 9, 8, 9, 10]))
    assert torch.equal(rows.patches, torch.cat([picture, film[0]]))
    assert torch.equal(rows.sound, film[1])
    moved = rows.to("meta")
    assert {part.device.type for part in (moved.tokens, moved.patches, moved.sound)} == {"meta"}
    assert moved.segments == rows.segments


@pytest.mark.parametrize(
    "rows, kind, message",
    [
        ([(Text(3), TOKENS)], TypeError, r"rows\[0\] must be a list of pairs of a segment and its content, got \(Text"),
        ([[], [(Text(3), TOKENS, 1)]], TypeError, r"rows\[1\] must be a list of pairs"),
        ([[(Text(3), [7, 8, 9])]], TypeError, r"the content of Text\(length=3.* must be a tensor, got \[7, 8, 9\]"),
        ([[(Text(3), TOKENS.int())]], TypeError, r"the content of Text\(length=3.* must be int64, got torch\.int32"),
        ([[(Text(4), TOKENS)]], ValueError, r"the content of Text\(length=4.* must have shape \(4,\), got \(3,\)"),
        ([[(Audio(3), TOKENS[:, None])]], TypeError, r"the content of Audio.* must be floating point, got torch\.int"),
        ([[(Audio(2), torch.ones(2, 4)), (Audio(2), torch.ones(2, 5))]], ValueError, "one width, got 4, 5"),
        ([[(Image(1, 2), torch.ones(2, 4))], [(Video(1, 1, 2), torch.ones(2, 6))]], ValueError, "patches must be of"),
        ([[(FILM, None)]], TypeError, "must be a list of those of its segments, got None"),
        ([[(FILM, [torch.ones(2, 4)])]], ValueError, "needs a content for each of its segments, got 1"),
        ([[(Bare(3), TOKENS)]], TypeError, "are made of Text, Image, Video, Audio and Together, got Bare"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(rows, kind, message):
    with pytest.raises(kind, match=message):
        MixedRows(rows)
