"""Mixed sequences against the four Qwen families of transformers: positions of whole batches, and logits."""

import random

import pytest
import torch
from torch import nn

import mmpos
from mmpos import Audio, Image, Text, Together, Video

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")

DRAW = random.Random()
MERGE = 2  # patches on a side of a token
IMAGE, VIDEO, AUDIO, VISION_START, VISION_END, AUDIO_START, AUDIO_END = range(1, 8)
IDS = {
    "image_token_id": IMAGE, "video_token_id": VIDEO, "vision_start_token_id": VISION_START,
    "vision_end_token_id": VISION_END,
}  # fmt: skip
SECTIONS = (4, 2, 2)
TEXT = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "bos_token_id": 8, "eos_token_id": 9, "pad_token_id": 0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": list(SECTIONS)},
}  # fmt: skip
VISION = {"depth": 1, "num_heads": 2, "patch_size": 4, "spatial_merge_size": MERGE, "temporal_patch_size": 2}


def model_of(family):
    """A tiny random model."""
    if family == "qwen2_vl":
        vision = VISION | {"embed_dim": 16, "hidden_size": 32, "mlp_ratio": 2}
        config = transformers.Qwen2VLConfig(text_config=TEXT, vision_config=vision, **IDS)
        model = transformers.Qwen2VLForConditionalGeneration(config)
    elif family == "qwen2_5_vl":
        vision = VISION | {
            "hidden_size": 16, "intermediate_size": 24, "out_hidden_size": 32, "tokens_per_second": 2,
            "window_size": 16, "fullatt_block_indexes": [0],
        }  # fmt: skip
        config = transformers.Qwen2_5_VLConfig(text_config=TEXT, vision_config=vision, **IDS)
        model = transformers.Qwen2_5_VLForConditionalGeneration(config)
    elif family == "qwen3_vl":
        vision = VISION | {
            "hidden_size": 16, "intermediate_size": 24, "out_hidden_size": 32, "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
        }  # fmt: skip
        parameters = TEXT["rope_parameters"] | {"mrope_interleaved": True}
        config = transformers.Qwen3VLConfig(
            text_config=TEXT | {"rope_parameters": parameters}, vision_config=vision, **IDS
        )
        model = transformers.Qwen3VLForConditionalGeneration(config)
    else:
        vision = VISION | {
            "hidden_size": 16, "intermediate_size": 24, "out_hidden_size": 32, "window_size": 16,
            "fullatt_block_indexes": [0],
        }  # fmt: skip
        audio = {
            "d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 24, "output_dim": 32,
            "num_mel_bins": 8, "max_source_positions": 100, "n_window": 50,
        }  # fmt: skip
        config = transformers.Qwen2_5OmniThinkerConfig(
            text_config=TEXT, vision_config=vision, audio_config=audio, image_token_id=IMAGE, video_token_id=VIDEO,
            audio_token_id=AUDIO, vision_start_token_id=VISION_START, vision_end_token_id=VISION_END,
            audio_start_token_id=AUDIO_START, audio_end_token_id=AUDIO_END,
        )  # fmt: skip
        model = transformers.Qwen2_5OmniThinkerForConditionalGeneration(config)
    # Weights as large as trained ones, so that attention looks at some tokens more than at others.
    for weight in model.parameters():
        if weight.ndim > 1:
            nn.init.normal_(weight, std=0.15)
    return model.eval()


class Inputs:
    """What a processor would make of rows of segments, written out token by token."""

    def __init__(self, rows, padding):
        self.images, self.videos, self.seconds, self.audios = [], [], [], []
        rows = [[token for place, _ in enumerate(row) for token in self.tokens(row, place)] for row in rows]
        length = max(map(len, rows))
        pads = [[0] * (length - len(row)) for row in rows]
        self.mask = torch.tensor(
            [
                [1] * len(row) + pad if padding == "right" else pad + [1] * len(row)
                for row, pad in zip(rows, pads, strict=True)
            ]
        )
        self.ids = torch.tensor(
            [row + pad if padding == "right" else pad + row for row, pad in zip(rows, pads, strict=True)]
        )
        self.types = (self.ids == IMAGE) * 1 + (self.ids == VIDEO) * 2

    def tokens(self, row, place):
        segment = row[place]
        if isinstance(segment, Image):
            self.images.append((1, segment.height * MERGE, segment.width * MERGE))
            return [IMAGE] * segment.size
        if isinstance(segment, Video):
            self.videos.append((segment.frames, segment.height * MERGE, segment.width * MERGE))
            self.seconds.append(1 / (segment.fps or 1.0))
            return [VIDEO] * segment.size
        if isinstance(segment, Audio):
            self.audios.append(4 * segment.length)  # frames of the spectrogram
            return [AUDIO] * segment.length
        if isinstance(segment, Together):
            return [token for part in range(2) for token in self.tokens(segment.segments, part)]
        ids = [DRAW.randrange(10, 60) for _ in range(segment.length)]
        before, after = (row[place - 1] if place else None), (row[place + 1] if place + 1 < len(row) else None)
        marks = {Image: (VISION_START, VISION_END), Video: (VISION_START, VISION_END), Audio: (AUDIO_START, AUDIO_END)}
        if isinstance(after, Together):
            ids = [VISION_START, AUDIO_START]
        elif type(after) in marks:
            ids[-1] = marks[type(after)][0]
        if isinstance(before, Together):
            ids = [AUDIO_END, VISION_END]
        elif type(before) in marks:
            ids[0] = marks[type(before)][1]
        return ids

    def grids(self):
        return {
            "image_grid_thw": torch.tensor(self.images) if self.images else None,
            "video_grid_thw": torch.tensor(self.videos) if self.videos else None,
        }


FPS = [0.5, 1.0, 2.0, 1.3, 3.0, 7.0, 14.985, 30.0]


def text(least=2):
    return Text(DRAW.randint(least, 9))


def image():
    return Image(DRAW.randint(1, 7), DRAW.randint(1, 7))


def video(most=12):
    return Video(DRAW.randint(1, most), DRAW.randint(1, 4), DRAW.randint(1, 5), fps=DRAW.choice(FPS))


def vision_row():
    row = [text()]
    for _ in range(DRAW.randint(0, 4)):
        row += [DRAW.choice([image, video])(), text()]
    return row


def split_row():
    row = [text()]
    for _ in range(DRAW.randint(1, 3)):
        clip = video(5)
        row += [image(), text(), *clip.split([DRAW.randint(2, 9) for _ in range(clip.frames)]), text()]
    return row


def omni_row():
    row = [text()]
    for _ in range(DRAW.randint(1, 4)):
        row += [DRAW.choice([image, video, lambda: Audio(DRAW.randint(1, 120), rate=25.0)])(), text()]
    return row


def film():
    """A video with its sound, for up to 20 seconds; at 0.2 frames a second, chunks pass without a frame."""
    fps = DRAW.choice([0.2, 0.4, 0.5, 1.0, 2.0, 3.3, 12.5])
    frames = DRAW.randint(1, int(20 * fps))
    clip = Video(frames, DRAW.randint(1, 3), DRAW.randint(1, 60 if frames < 5 else 4), fps=fps)
    longest, least = int(25 * (frames + 1) / fps), int(25 * (frames - 1) / fps) + 1
    return Together(clip, Audio(DRAW.randint(least, longest), rate=25.0))


def film_row():
    row = [text()]
    for _ in range(DRAW.randint(1, 3)):
        row += [image(), text(), Audio(DRAW.randint(1, 60), rate=25.0), text()] if DRAW.random() < 0.4 else []
        row += [Text(2, shared=True), film(), Text(2, shared=True), text()]
    return row


@pytest.fixture(autouse=True)
def same_rows():
    DRAW.seed(3)


MAKERS = {"qwen2_vl": vision_row, "qwen2_5_vl": vision_row, "qwen3_vl": split_row, "qwen2_5_omni": omni_row}


def theirs(model, family, inputs, films=False):
    if family == "qwen2_5_omni":
        return model.get_rope_index(
            inputs.ids, **inputs.grids(), attention_mask=inputs.mask, use_audio_in_video=films,
            audio_seqlens=torch.tensor(inputs.audios), second_per_grids=torch.tensor(inputs.seconds),
        )  # fmt: skip
    extra = {"second_per_grid_ts": torch.tensor(inputs.seconds)} if family == "qwen2_5_vl" else {}
    return model.model.get_rope_index(
        inputs.ids, inputs.types, **inputs.grids(), attention_mask=inputs.mask, **extra
    )  # fmt: skip


def check_positions(rule, rows, padding, films=False):
    inputs, model = Inputs(rows, padding), model_of(rule)
    expected, deltas = theirs(model, rule, inputs, films)
    coords, mask, next_position = mmpos.multimodal_coords(rows, rule, padding=padding)
    assert torch.equal(mask, inputs.mask.bool())
    assert coords.dtype == torch.int64
    assert torch.equal(coords[mask], expected.permute(1, 2, 0)[mask])
    assert torch.equal(next_position, mask.sum(1) + deltas[:, 0])
    assert not coords[~mask].any()


@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("rule", MAKERS)
def test_positions_of_mixed_batches(rule, padding):
    first = [[Text(4), Image(3, 5), Text(3), Image(6, 2), Text(2)]]
    check_positions(rule, first + [MAKERS[rule]() for _ in range(40)], padding)


@pytest.mark.parametrize("padding", ["left", "right"])
def test_positions_of_films_with_sound(padding):
    check_positions("qwen2_5_omni", [film_row() for _ in range(40)], padding, films=True)


def test_time_is_floored_as_they_floor_it():
    rates = [DRAW.uniform(0.1, 40) for _ in range(200)] + [float(rate) for rate in range(1, 60)]
    rows = [[Text(2), Video(64, 1, 1, fps=fps), Text(2)] for fps in rates]
    check_positions("qwen2_5_vl", rows, "right")
    check_positions("qwen2_5_omni", rows, "right")


class Ours(nn.Module):
    """Cosines and sines of mmpos in the place of a model's rotary embedding."""

    def __init__(self, coords, interleaved):
        super().__init__()
        spectrum = mmpos.Sections(SECTIONS, interleaved=interleaved)
        self.rope, self.coords = mmpos.RoPE(head_dim=16, axes=3, spectrum=spectrum), coords

    def forward(self, x, position_ids):
        rotation = self.rope(self.coords)
        return tuple(torch.cat([part[:, 0]] * 2, dim=-1).to(x.dtype) for part in (rotation.cos, rotation.sin))


LOGITS = {
    "qwen2_vl": [[Text(3), Image(3, 2), Text(4), Video(4, 2, 3), Text(3)], [Text(5)]],
    "qwen2_5_vl": [[Text(3), Image(3, 2), Text(4), Video(4, 2, 3, fps=0.7), Text(3)], [Text(5)]],
    "qwen3_vl": [[Text(3), Image(3, 2), Text(4), *Video(3, 2, 4).split([3, 4, 5]), Text(3)], [Text(5)]],
    "qwen2_5_omni": [
        [Text(3), Image(3, 2), Text(4), Text(2, shared=True),
         Together(Video(4, 2, 3, fps=1.0), Audio(100, rate=25.0)), Text(2, shared=True), Text(3)],
        [Text(5)],
    ],
}  # fmt: skip


def arguments_of(rule, inputs):
    """What the model is called with."""
    patches = {
        name: torch.randn(sum(t * h * w for t, h, w in grids), 3 * 2 * 4 * 4)
        for name, grids in (("pixel_values", inputs.images), ("pixel_values_videos", inputs.videos))
    }
    arguments = {"input_ids": inputs.ids, "attention_mask": inputs.mask, **patches, **inputs.grids()}
    if rule == "qwen2_5_omni":
        (frames,) = inputs.audios
        arguments |= {
            "input_features": torch.randn(1, 8, frames), "feature_attention_mask": torch.ones(1, frames).long(),
            "use_audio_in_video": True, "video_second_per_grid": torch.tensor(inputs.seconds),
        }  # fmt: skip
    else:
        arguments["mm_token_type_ids"] = inputs.types
    if rule == "qwen2_5_vl":
        arguments["second_per_grid_ts"] = torch.tensor(inputs.seconds)
    return arguments


@torch.no_grad()
@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("rule", LOGITS)
def test_logits(rule, padding):
    rows = LOGITS[rule]
    inputs, model = Inputs(rows, padding), model_of(rule)
    arguments = arguments_of(rule, inputs)
    expected = model(**arguments).logits
    coords, mask, _ = mmpos.multimodal_coords(rows, rule, padding=padding)
    model.model.language_model.rotary_emb = Ours(coords, interleaved=rule == "qwen3_vl")
    torch.testing.assert_close(model(**arguments).logits[mask], expected[mask], atol=1e-5, rtol=0)
    other = mmpos.multimodal_coords(rows, "sequential", padding=padding).coords
    model.model.language_model.rotary_emb = Ours(other, interleaved=rule == "qwen3_vl")
    assert (model(**arguments).logits - expected)[mask].abs().max() > 1e-4


class OursInTurn(nn.Module):
    """As `Ours`, with the coordinates of one call after the other."""

    def __init__(self, coords, interleaved):
        super().__init__()
        self.calls = [Ours(each, interleaved) for each in coords]

    def forward(self, x, position_ids):
        return self.calls.pop(0)(x, position_ids)


@torch.no_grad()
@pytest.mark.parametrize("rule", LOGITS)
def test_logits_of_what_is_generated_from_a_cache(rule):
    """Generated tokens go on from the last one.

    That is ``next_position`` but behind a video that lasts longer than the text after it: there `get_rope_index` goes
    on after its last frame, and `generate` after the text.
    """
    rows, inputs, model = LOGITS[rule], Inputs(LOGITS[rule], "left"), model_of(rule)
    coords, _, next_position = mmpos.multimodal_coords(rows, rule, padding="left")

    goes_on = coords[:, -1, 0] + 1
    assert (next_position - goes_on).tolist() == [3 * (rule == "qwen2_5_vl"), 0]

    def logits(shift=None):
        if shift is not None:
            places = [(goes_on + shift + step)[:, None, None].expand(-1, 1, 3) for step in range(3)]
            model.model.language_model.rotary_emb = OursInTurn([coords, *places], rule == "qwen3_vl")
        forced = {"max_new_tokens": 4, "do_sample": False, "suppress_tokens": list(range(10)), "min_new_tokens": 4}
        out = model.generate(
            **arguments_of(rule, inputs), **forced, output_logits=True, return_dict_in_generate=True
        )  # fmt: skip
        return torch.stack(out.logits)

    torch.manual_seed(0)
    expected = logits()
    torch.manual_seed(0)  # the same pixels
    torch.testing.assert_close(logits(shift=0), expected, atol=1e-5, rtol=0)
    torch.manual_seed(0)
    assert (logits(shift=1) - expected)[1:].abs().max() > 1e-4
