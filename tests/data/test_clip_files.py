"""What files of clips come with: rotation, sound, cover pictures, uneven frames, other containers and codecs."""

from fractions import Fraction

import pytest
import torch

av = pytest.importorskip("av", reason="clips are read by PyAV: pip install 'mmpos[video]'")

from av.stream import Disposition  # noqa: E402

from mmpos.data.clips import Sampling, check_clip, read_clip  # noqa: E402

WIDTH, HEIGHT, BAR, SPEED = 96, 32, 8, 30.0
MILLI = Fraction(1, 1000)
COLOURS = torch.tensor([[[220, 30, 30], [30, 220, 30]], [[30, 30, 220], [220, 220, 220]]], dtype=torch.uint8)


def picture(seconds):
    """A bar that goes to the right."""
    pixels, left = torch.zeros(HEIGHT, WIDTH, 3, dtype=torch.uint8), round(SPEED * seconds)
    pixels[:, left : left + BAR] = 255
    return pixels


def quarters():
    """Red, green, blue and white: no two turns of it are alike."""
    return COLOURS.repeat_interleave(HEIGHT // 2, 0).repeat_interleave(WIDTH // 2, 1)


def seen_at(frames):
    """Where the bar is in each frame, in seconds."""
    light = (frames.double().mean((1, 2)) - 64).clamp(min=0)
    return ((light * (torch.arange(WIDTH) + 0.5)).sum(-1) / light.sum(-1) - BAR / 2) / SPEED


def write(path, times, codec="libx264", base=MILLI, draw=picture, turn=None, sound=0.0, hold=None, **options):
    """A clip of frames at these seconds; ``turn`` prepares the stream, and the last frame is held for ``hold``."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=25, options=options)
        stream.width, stream.height = WIDTH, HEIGHT
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.codec_context.time_base = base
        if turn is not None:
            turn(stream)
        if sound:
            track = container.add_stream("flac" if path.suffix == ".mkv" else "libopus", rate=48000)
        packets = []
        for seconds in times:
            frame = av.VideoFrame.from_ndarray(draw(seconds).numpy(), format="rgb24")
            frame.pts, frame.time_base = round(seconds / base), base
            packets += stream.encode(frame)
        packets += stream.encode()
        if hold is not None:
            max(packets, key=lambda packet: packet.pts).duration = round(hold / base)
        container.mux(packets)
        if sound:
            silence = av.AudioFrame(format="s16", layout="mono", samples=round(48000 * sound))
            silence.sample_rate, silence.pts = 48000, 0
            silence.planes[0].update(bytes(silence.planes[0].buffer_size))
            container.mux(track.encode(silence))
            container.mux(track.encode())
    return path


EVEN = [number / 25 for number in range(50)]
FILES = {
    "a.mp4": "hevc", "b.mov": "mjpeg", "c.webm": "libvpx", "d.avi": "mpeg4", "e.mpg": "mpeg2video",
    "f.mpeg": "mpeg1video", "g.mkv": "ffv1", "h.m4v": "libx264", "i.mp4": "libsvtav1",
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_codecs_and_containers(tmp_path, name):
    if FILES[name] not in av.codecs_available:
        pytest.skip(f"PyAV is built without {FILES[name]}")
    path = write(tmp_path / name, EVEN, FILES[name], base=Fraction(1, 25))
    sampling = Sampling(frames=5, fps=4.0)
    assert check_clip(path, sampling) is None
    want = torch.tensor([0.48, 0.72, 1.0, 1.24, 1.48]).double()
    torch.testing.assert_close(seen_at(read_clip(path, sampling)), want, rtol=0, atol=0.041)


def test_what_lies_before_the_first_key_frame_that_seeking_finds_is_read(tmp_path):
    """An MPEG program stream has no index; seeking in it leads to a key frame behind the time that is sought."""
    times = [number / 25 for number in range(200)]
    path = write(tmp_path / "a.mpg", times, "mpeg2video", Fraction(1, 25), lambda s: picture(s / 4), g="90")
    found = seen_at(read_clip(path, Sampling(frames=5, fps=1.0))) * 4
    torch.testing.assert_close(found, torch.tensor([2.0, 3.0, 4.0, 5.0, 6.0]).double(), rtol=0, atol=0.1)


@pytest.mark.parametrize("name", ["a.mkv", "b.webm"])
def test_the_length_is_that_of_the_pictures_and_not_of_the_sound(tmp_path, name):
    path = write(tmp_path / name, EVEN, "libvpx" if name == "b.webm" else "libx264", sound=6.0)
    with av.open(str(path)) as container:
        assert container.duration > 5.9e6
    sampling = Sampling(frames=5, fps=4.0)
    assert check_clip(path, sampling) is None
    want = torch.tensor([0.48, 0.72, 1.0, 1.24, 1.48]).double()
    torch.testing.assert_close(seen_at(read_clip(path, sampling)), want, rtol=0, atol=0.041)
    assert "lasts 2 s, less than the 3 s that are read" in check_clip(path, Sampling(frames=4, fps=1.0))


@pytest.mark.parametrize("name", ["a.mkv", "b.mp4"])
def test_a_clip_that_starts_late_is_counted_from_its_first_frame(tmp_path, name):
    path = write(tmp_path / name, [3 + seconds for seconds in EVEN], draw=lambda seconds: picture(seconds - 3))
    want = torch.tensor([0.48, 0.72, 1.0, 1.24, 1.48]).double()
    torch.testing.assert_close(seen_at(read_clip(path, Sampling(5, 4.0))), want, rtol=0, atol=0.041)


@pytest.mark.parametrize("name", ["a.mkv", "b.mp4"])
def test_frames_at_uneven_times(tmp_path, name):
    times = [0, 0.1, 0.2, 0.3, 0.7, 0.75, 0.8, 1.9, 1.95, 2.0]
    frames = read_clip(write(tmp_path / name, times), Sampling(frames=9, fps=5.0))
    begin = (2.04 - 1.6) / 2
    want = [max(time for time in times if time <= begin + number / 5) for number in range(9)]
    torch.testing.assert_close(seen_at(frames), torch.tensor(want).double(), rtol=0, atol=0.03)


def test_a_last_frame_that_is_held_is_on_the_screen_to_the_end(tmp_path):
    path = write(tmp_path / "a.mkv", [0, 0.1, 0.2], codec="mjpeg", hold=1.8)
    frames = read_clip(path, Sampling(frames=4, fps=2.0))
    assert check_clip(path, Sampling(frames=4, fps=2.0)) is None
    torch.testing.assert_close(seen_at(frames), torch.full((4,), 0.2).double(), rtol=0, atol=0.02)


# Rows of ((a, b), (c, d)): a point (x, y) is shown at (a x + c y, b x + d y); y points down.
TURNS = {
    "none": ((1, 0, 0, 1), lambda p: p),
    "a quarter clockwise": ((0, 1, -1, 0), lambda p: p.rot90(-1)),
    "a quarter anticlockwise": ((0, -1, 1, 0), lambda p: p.rot90(1)),
    "a half": ((-1, 0, 0, -1), lambda p: p.rot90(2)),
    "mirrored": ((-1, 0, 0, 1), lambda p: p.flip(1)),
    "upside down": ((1, 0, 0, -1), lambda p: p.flip(0)),
    "transposed": ((0, 1, 1, 0), lambda p: p.transpose(0, 1)),
    "transposed the other way": ((0, -1, -1, 0), lambda p: p.rot90(2).transpose(0, 1)),
}


@pytest.mark.parametrize("name", TURNS)
def test_clips_are_upright(tmp_path, name):
    (a, b, c, d), turned = TURNS[name]
    one, matrix = 1 << 16, None
    matrix = [a * one, b * one, 0, c * one, d * one, 0, 0, 0, 1 << 30]
    path = write(tmp_path / "a.mp4", EVEN, draw=lambda _: quarters(), turn=lambda s: s.set_display_matrix(matrix))
    frames, want = read_clip(path, Sampling(frames=2, fps=4.0)), turned(quarters())
    assert frames.shape == (2, 3, *want.shape[:2])
    rows, columns = want.shape[:2]
    for y in (rows // 4, 3 * rows // 4):
        for x in (columns // 4, 3 * columns // 4):
            assert (frames[1, :, y, x].int() - want[y, x].int()).abs().max() < 25, (y, x)


def test_rotation_is_that_of_other_players(tmp_path):
    """PyAV counts degrees anticlockwise."""
    path = write(tmp_path / "a.mp4", EVEN, draw=lambda _: quarters(), turn=lambda s: s.set_display_rotation(90))
    with av.open(str(path)) as container:
        degrees = next(container.decode(video=0)).rotation
    frames, want = read_clip(path, Sampling(frames=1, fps=4.0)), quarters().rot90(degrees // 90)
    assert (frames[0, :, 24, 8].int() - want[24, 8].int()).abs().max() < 25


def test_a_cover_picture_is_no_clip(tmp_path):
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as container:
        cover, film = container.add_stream("mjpeg", rate=25), container.add_stream("libx264", rate=25)
        for stream in (cover, film):
            stream.width, stream.height = (16, 16) if stream is cover else (WIDTH, HEIGHT)
            stream.pix_fmt, stream.codec_context.time_base = ("yuvj420p" if stream is cover else "yuv420p"), MILLI
        cover.disposition = Disposition.attached_pic
        blank = av.VideoFrame.from_ndarray(torch.zeros(16, 16, 3).byte().numpy(), format="rgb24")
        blank.pts, blank.time_base = 0, MILLI
        container.mux(cover.encode(blank))
        for seconds in EVEN:
            frame = av.VideoFrame.from_ndarray(picture(seconds).numpy(), format="rgb24")
            frame.pts, frame.time_base = round(1000 * seconds), MILLI
            container.mux(film.encode(frame))
        container.mux(film.encode())
    assert read_clip(path, Sampling(frames=5, fps=4.0)).shape == (5, 3, HEIGHT, WIDTH)


def test_files_that_are_no_whole_clips_are_named(tmp_path):
    """No frame at all; frames of two sizes."""
    with av.open(str(tmp_path / "none.mkv"), "w") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        container.start_encoding()
    with pytest.raises(OSError, match=r"none\.mkv cannot be decoded"):
        read_clip(tmp_path / "none.mkv", Sampling(frames=1, fps=4.0))
    packets = []
    for number, size in enumerate([(32, 16), (32, 16), (16, 16)]):
        encoder = av.CodecContext.create("mjpeg", "w")
        (encoder.width, encoder.height), encoder.pix_fmt, encoder.time_base = size, "yuvj420p", Fraction(1, 2)
        frame = av.VideoFrame(*size, "yuvj420p")
        frame.pts, frame.time_base = 0, Fraction(1, 2)
        packets += [(number, packet) for packet in [*encoder.encode(frame), *encoder.encode()]]
    with av.open(str(tmp_path / "two.mkv"), "w") as container:
        stream = container.add_stream("mjpeg", rate=2)
        stream.width, stream.height, stream.pix_fmt = 32, 16, "yuvj420p"
        for number, packet in packets:
            packet.stream, packet.time_base, packet.pts, packet.dts = stream, Fraction(1, 2), number, number
            container.mux(packet)
    with pytest.raises(OSError, match=r"two\.mkv cannot be decoded: its frames have 2 sizes"):
        read_clip(tmp_path / "two.mkv", Sampling(frames=3, fps=2.0))
