"""Questions: what is asked is what the picture or the film shows, the same always, with digits of their own part."""

import math

import pytest
import torch

from mmpos.data.questions import BURST, END, PITCH, SAMPLING_RATE, PictureQuestions, Question, Questions, SoundQuestions
from mmpos.multimodal import Audio, Image, Text, Together, Video


def draws(number=0):
    return torch.Generator().manual_seed(number)


@pytest.fixture(params=[PictureQuestions, SoundQuestions])
def data(request):
    data = request.param(batch_size=16, num_questions=40, limit=20)
    data.setup()
    return data


def shown(data, part, patches):
    """The classes of digits, found by their pixels among those of a part."""
    images, labels = data.digits[part]
    distance, nearest = torch.cdist(patches, images.flatten(1)).min(dim=1)
    assert distance.max() < 1e-4
    return labels[nearest]


@pytest.mark.parametrize("part", ["val", "test"])
def test_the_answer_is_what_the_picture_shows(part):
    data = PictureQuestions()
    data.setup()
    sizes = set()
    for number in range(60):
        asked = data.ask(part, draws(number))
        image = asked.segment
        assert isinstance(image, Image)
        sizes.add((image.height, image.width))
        digits = shown(data, part, asked.content).view(image.height, image.width)
        row, column = int(asked.text[1]), int(asked.text[3])
        assert asked.text == f"r{row}c{column}"
        assert digits[row - 1, column - 1] == asked.answer
    assert {height for height, _ in sizes} == {2, 3, 4}
    assert {width for _, width in sizes} == {2, 3, 4, 5}


def test_patches_are_row_by_row():
    data = PictureQuestions(patch_size=4, rows=(2, 2), columns=(3, 3))
    data.setup()
    whole = PictureQuestions(patch_size=8, rows=(2, 2), columns=(3, 3))
    whole.setup()
    small, large = (one.ask("val", draws(5)) for one in (data, whole))
    assert (small.segment, large.segment) == (Image(4, 6), Image(2, 3))
    grid = small.content.view(4, 6, 4, 4)
    for row in range(2):
        for column in range(3):
            digit = large.content[3 * row + column].view(8, 8)
            for y in range(2):
                for x in range(2):
                    part = digit[4 * y : 4 * y + 4, 4 * x : 4 * x + 4]
                    assert torch.equal(grid[2 * row + y, 2 * column + x], part)


def test_the_tone_sounds_while_its_frame_is_on_screen():
    data = SoundQuestions()
    data.setup()
    ratios, ends = set(), []
    for number in range(80):
        asked = data.ask("val", draws(number))
        film = asked.segment
        assert isinstance(film, Together)
        video, audio = film.segments
        assert isinstance(video, Video)
        assert isinstance(audio, Audio)
        patches, sound = asked.content
        assert sound.shape == (audio.length, 8)
        heard = sound.logsumexp(1).argmax() / audio.rate
        frame = math.floor(heard * video.fps)
        assert shown(data, "val", patches)[frame] == asked.answer
        ratios.add(round(audio.rate / video.fps, 1))
        ends.append(audio.length / audio.rate * video.fps / video.frames)
    assert len(ratios) > 10  # so the number of a frame of sound does not tell the frame of film
    assert min(ratios) >= 1.9
    assert max(ratios) <= 3.6
    assert min(ends) < 0.6 < 1.1 < max(ends)  # nor does its share of all


def test_the_tone_is_that_of_its_pitch():
    data = SoundQuestions(bands=20)
    data.setup()
    corners = [2595 * math.log10(1 + edge / 700) for edge in (50.0, 1000.0)]
    place = (2595 * math.log10(1 + PITCH / 700) - corners[0]) / (corners[1] - corners[0]) * 21 - 1
    for number in range(5):
        _, sound = data.ask("val", draws(number)).content
        loudest = sound[sound.logsumexp(1).argmax()]
        assert abs(int(loudest.argmax()) - place) < 1
    assert BURST * SAMPLING_RATE > 100


def test_questions_are_the_same_whatever_the_seed(data):
    first = list(data.val_dataloader())
    torch.manual_seed(99)
    again = type(data)(batch_size=16, num_questions=40, limit=20)
    again.setup()
    for one, other in zip(first, again.val_dataloader(), strict=True):
        assert torch.equal(one["answer"], other["answer"])
        for name in ("tokens", "patches", "sound"):
            assert torch.equal(getattr(one["rows"], name), getattr(other["rows"], name))
        assert str(one["rows"].segments) == str(other["rows"].segments)
    test = next(iter(data.test_dataloader()))
    assert not torch.equal(test["answer"], first[0]["answer"])


def test_parts_have_digits_of_their_own(data):
    sets = [{tuple(image.flatten().tolist()) for image in images} for images, _ in data.digits.values()]
    assert [len(one) for one in sets] == [len(labels) for _, labels in data.digits.values()] == [1293, 144, 360]
    assert not sets[0] & sets[1]
    assert not sets[0] & sets[2]
    assert not sets[1] & sets[2]


def test_rows_end_with_the_answer_but_for_its_last_byte(data):
    batch = next(iter(data.test_dataloader()))
    asked = next(iter(data.predict_dataloader()))
    assert torch.equal(batch["answer"], asked["answer"])
    answer, place = batch["answer"], 0
    assert answer.shape == (16, 2)
    assert (answer[:, 1] == END).all()
    for row, short, digit in zip(batch["rows"].segments, asked["rows"].segments, answer[:, 0], strict=True):
        question, _, end = row
        assert (end, short[2]) == (Text(2), Text(1))
        text = batch["rows"].tokens[place : place + question.length + 2]
        place += question.length + 2
        assert bytes(text.tolist()[-2:]) == b":" + bytes([digit])
        assert 48 <= digit < 58


def test_training_has_smaller_ones_and_shifts_digits():
    data = PictureQuestions()
    data.setup()
    sizes = [data.ask("train", draws(number)).segment for number in range(300)]
    assert {image.height for image in sizes} == {1, 2, 3, 4}
    assert {image.width for image in sizes} == {1, 2, 3, 4, 5}
    still = PictureQuestions(max_shift=0)
    still.setup()
    shifted, plain = (one.ask("train", draws(1)).content for one in (data, still))
    shown(still, "train", plain)
    images = still.digits["train"][0].flatten(1)
    assert torch.cdist(shifted, images).min(dim=1).values.max() > 0.1


def test_a_loader_asks_each_question_once(data):
    numbers = [batch["answer"] for batch in data.train_dataloader()]
    assert [len(batch) for batch in numbers] == [16, 16, 8]
    digits = [data.ask("train", torch.Generator().manual_seed(3 * number)).answer for number in range(40)]
    seen = torch.cat(numbers)[:, 0] - 48
    assert sorted(seen.tolist()) == sorted(digits)
    assert seen.tolist() != digits  # shuffled
    one = Questions(data, "train", 40, answered=True).__getitems__([7])
    assert int(one["answer"][0, 0]) - 48 == digits[7]
    assert isinstance(data.ask("val", draws()), Question)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: PictureQuestions(rows=(3, 2)), r"rows \(3, 2\) must be least and most, from 1 to 9"),
        (lambda: PictureQuestions(patch_size=3), r"patch_size \(3\) must divide 8"),
        (lambda: SoundQuestions(frames=(0, 2)), r"frames \(0, 2\) must be least and most, from 1"),
        (lambda: SoundQuestions(bands=0), r"bands \(0\) must be at least 1"),
        (lambda: SoundQuestions(batch_size=0), r"batch_size \(0\) must be at least 1"),
    ],
)
def test_arguments_out_of_range(make, message):
    with pytest.raises(ValueError, match=message):
        make()
