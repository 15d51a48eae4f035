import gzip
import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch import seed_everything
from PIL import Image
from torchvision import datasets
from torchvision.datasets.mnist import read_image_file, read_label_file
from torchvision.transforms import v2

from mmpos.data import CIFAR10, CIFAR100, MNIST, FashionMNIST, ImageFolder
from mmpos.data.readers import PictureReader, find_files, read_idx
from mmpos.data.samples import spread_rows
from mmpos.data.transforms import cover, parse_size, shift_and_mirror
from tests.image_files import FASHION, needs_fashion, write_folder, write_idx, write_mnist, write_picture


class Model:
    """As much of a trainer as a data module asks for."""

    def __init__(self, **hparams):
        self.lightning_module, self.hparams, self.training = self, hparams, False


def loaded(data, **hparams):
    if hparams:
        data.trainer = Model(**hparams)
    data.prepare_data()
    data.setup("fit")
    return data


@pytest.fixture(scope="module")
def fashion():
    return loaded(FashionMNIST(str(FASHION), batch_size=256))


@needs_fashion
def test_fashion_mnist_is_read_where_debian_puts_it(fashion, tmp_path):
    theirs = {}
    for prefix in ("train", "t10k"):  # torchvision reads what is unpacked
        for what, read in (("images-idx3", read_image_file), ("labels-idx1", read_label_file)):
            path = tmp_path / f"{prefix}-{what}-ubyte"
            path.write_bytes(gzip.decompress((FASHION / f"{path.name}.gz").read_bytes()))
            theirs[prefix, what] = read(str(path))
    test = fashion.parts["test"]
    assert torch.equal(test.images[:, 0], theirs["t10k", "images-idx3"])
    assert torch.equal(test.labels, theirs["t10k", "labels-idx1"])
    train, val = fashion.parts["train"], fashion.parts["val"]
    assert (train.images.shape, val.images.shape) == ((54_000, 1, 28, 28), (6_000, 1, 28, 28))
    pixels = theirs["train", "images-idx3"].float() / 255
    assert fashion.look.mean == pytest.approx((pixels.mean().item(),), abs=1e-3)
    assert fashion.look.std == pytest.approx((pixels.std().item(),), abs=1e-3)
    assert fashion.classes[theirs["t10k", "labels-idx1"][0]] == "Ankle boot"


@needs_fashion
def test_validation_has_the_same_images_whatever_the_seed(fashion):
    seed_everything(7, verbose=False)
    other = loaded(FashionMNIST(str(FASHION)))
    assert torch.equal(other.parts["val"].images, fashion.parts["val"].images)
    assert (fashion.parts["val"].labels.bincount() == 600).all()


@needs_fashion
def test_batches_are_about_zero_with_a_deviation_of_one(fashion):
    images, labels = next(iter(fashion.train_dataloader()))
    assert (images.shape, images.dtype, labels.shape) == ((256, 1, 28, 28), torch.float32, (256,))
    assert images.mean().item() == pytest.approx(0, abs=0.1)
    assert images.std().item() == pytest.approx(1, abs=0.1)
    sizes = [len(labels) for _, labels in fashion.test_dataloader()]
    assert sizes == [256] * 39 + [16]
    first, second = (next(iter(fashion.test_dataloader()))[0] for _ in range(2))
    assert torch.equal(first, second)
    again = next(iter(fashion.train_dataloader()))[1]
    assert not torch.equal(again, labels)  # shuffled


@needs_fashion
def test_other_sizes_are_the_same_images_resized(fashion):
    wide, labels = next(iter(fashion.evaluation_loader("test", (28, 56), limit=50)))
    same, also = next(iter(fashion.evaluation_loader("test", limit=50)))
    assert wide.shape == (50, 1, 28, 56)
    assert torch.equal(labels, also)
    assert (labels.bincount() == 5).all()
    assert (wide.unflatten(-1, (28, 2)).mean(-1) - same).abs().mean() < 0.1


def test_mnist_is_read_where_torchvision_puts_it(tmp_path):
    write_mnist(tmp_path / "MNIST" / "raw")
    data = loaded(MNIST(str(tmp_path), batch_size=8))
    assert {part: len(samples.labels) for part, samples in data.parts.items()} == {"train": 36, "val": 4, "test": 20}
    assert next(iter(data.test_dataloader()))[0].shape == (8, 1, 5, 7)
    assert data.classes == tuple("0123456789")
    theirs = datasets.MNIST(tmp_path, train=False)
    assert torch.equal(data.parts["test"].images[:, 0], theirs.data)


@pytest.mark.parametrize("dataset, ours, names", [(datasets.CIFAR10, CIFAR10, 10), (datasets.CIFAR100, CIFAR100, 100)])
def test_cifar_is_read_where_torchvision_puts_it(dataset, ours, names, tmp_path, monkeypatch):
    files = [[name, None] for name, _ in dataset.train_list], [[name, None] for name, _ in dataset.test_list]
    meta = dataset.meta | {"md5": None}
    for name, value in (("train_list", files[0]), ("test_list", files[1]), ("meta", meta)):
        monkeypatch.setattr(dataset, name, value)
    folder, random = tmp_path / dataset.base_folder, np.random.default_rng(0)
    folder.mkdir()
    key = "labels" if names == 10 else "fine_labels"
    for name, _ in [*files[0], *files[1]]:
        batch = {"data": random.integers(256, size=(20, 3072), dtype=np.uint8), key: [n % names for n in range(20)]}
        (folder / name).write_bytes(pickle.dumps(batch))
    classes = [f"c{n}" for n in range(names)]
    (folder / meta["filename"]).write_bytes(pickle.dumps({meta["key"]: classes}))
    data = loaded(ours(str(tmp_path), batch_size=20))
    assert data.classes == tuple(classes)
    assert len(data.parts["train"].labels) + len(data.parts["val"].labels) == 20 * len(files[0])
    images, labels = next(iter(data.test_dataloader()))
    assert images.shape == (20, 3, 32, 32)
    image, label = dataset(tmp_path, train=False)[3]
    own = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(data.look.mean, data.look.std)])
    torch.testing.assert_close(images[3], own(image).as_subclass(torch.Tensor))
    assert labels[3] == label


@pytest.mark.parametrize("data", [MNIST, FashionMNIST, CIFAR10, CIFAR100])
def test_missing_files_say_how_to_get_them(data, tmp_path):
    message = rf"root \(.*nowhere\) does not have {data.__name__} \(.*\); point root .*--data.download"
    with pytest.raises(FileNotFoundError, match=message):
        loaded(data(str(tmp_path / "nowhere")))


def test_what_is_missing_is_downloaded_once(tmp_path, monkeypatch):
    calls = []

    def download(root, download):
        calls.append(download)
        write_mnist(Path(root) / "MNIST" / "raw")

    monkeypatch.setattr(datasets, "MNIST", download)
    for _ in range(2):
        loaded(MNIST(str(tmp_path), download=True))
    assert calls == [True]

    def fail(root, download):
        raise RuntimeError("no route to host")

    monkeypatch.setattr(datasets, "MNIST", fail)
    with pytest.raises(OSError, match=r"MNIST cannot be downloaded to .*other: no route to host"):
        loaded(MNIST(str(tmp_path / "other"), download=True))
    with pytest.raises(OSError, match="ImageFolder has no place to download from"):
        loaded(ImageFolder(str(tmp_path / "other"), download=True))


@pytest.mark.parametrize(
    "content, message",
    [
        (b"\0\0\x08\x01\0\0\0\x05abc", r"labels should have \[5\] bytes but has 3"),
        (b"PNG", r"labels is not an IDX file of bytes; it starts with 504e47"),
        (b"\0\0\x0d\x01\0\0\0\x01abcd", r"labels is not an IDX file of bytes; it starts with 00000d01"),
    ],
)
def test_broken_idx_files_are_named(content, message, tmp_path):
    (tmp_path / "labels").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_idx(tmp_path / "labels")
    packed = tmp_path / "labels.gz"
    packed.write_bytes(gzip.compress(content)[:-9])
    with pytest.raises(ValueError, match=r"labels.gz cannot be unpacked: "):
        read_idx(packed)


def test_images_without_labels_are_refused(tmp_path):
    write_mnist(tmp_path)
    write_idx(tmp_path / "t10k-labels-idx1-ubyte", np.zeros(3, dtype=np.uint8))
    with pytest.raises(ValueError, match=r"t10k files .* got \(20, 5, 7\) and \(3,\)"):
        loaded(MNIST(str(tmp_path)))


def test_each_image_is_shifted_and_mirrored_on_its_own():
    images = torch.arange(1, 36, dtype=torch.uint8).view(1, 1, 5, 7).repeat(2000, 1, 1, 1)
    look = FashionMNIST.look
    changed = shift_and_mirror(images, look)
    possible = set()
    for top in range(5):
        for left in range(5):
            crop = v2.functional.crop(v2.functional.pad(images[0], [2]), top, left, 5, 7)
            possible |= {tuple(crop.flatten().tolist()), tuple(crop.flip(-1).flatten().tolist())}
    counts = Counter(tuple(image.flatten().tolist()) for image in changed)
    assert set(counts) == possible
    assert len(possible) == 50
    assert max(counts.values()) < 4 * min(counts.values())
    digits = shift_and_mirror(images, MNIST.look)
    assert len({tuple(image.flatten().tolist()) for image in digits}) == 25


def test_augmentation_can_be_turned_off_and_is_for_training_only(tmp_path):
    write_mnist(tmp_path)
    plain, changed = (loaded(MNIST(str(tmp_path), augment=on, batch_size=36)) for on in (False, True))
    own = plain.parts["train"].images.float().sum()
    sums = []
    for data in (plain, changed):
        ((images, _),) = data.train_dataloader()
        sums.append(((images * data.look.std[0] + data.look.mean[0]) * 255).sum())
        ((images, _),) = data.val_dataloader()
        first = ((images * data.look.std[0] + data.look.mean[0]) * 255).round().byte()
        assert torch.equal(first, data.parts["val"].images)
    assert sums[0].item() == pytest.approx(own.item(), rel=1e-5)
    assert sums[1] < 0.98 * own  # what is shifted out is lost


def test_images_come_in_the_size_and_the_channels_of_the_model(tmp_path, caplog):
    write_mnist(tmp_path)
    data = loaded(MNIST(str(tmp_path)), image_size=(10, 14), in_chans=3)
    data.setup("test")
    for loader in (data.train_dataloader(), data.val_dataloader(), data.test_dataloader(), data.predict_dataloader()):
        images, _ = next(iter(loader))
        assert images.shape[1:] == (3, 10, 14)
        assert torch.equal(images[:, 0], images[:, 2])
    assert [record.message for record in caplog.records] == [
        "MNIST is grey where the model expects colour; its images are converted"
    ]
    data = loaded(MNIST(str(tmp_path), image_size=(5, 14)), image_size=(10, 14), in_chans=1)
    assert next(iter(data.test_dataloader()))[0].shape == (20, 1, 5, 14)
    with pytest.raises(ValueError, match=r"in_chans \(4\) must be 1 or 3"):
        loaded(MNIST(str(tmp_path)), in_chans=4)


def test_a_limit_keeps_the_shares_of_classes(tmp_path):
    write_mnist(tmp_path, train=200, test=50)
    data = loaded(MNIST(str(tmp_path), limit=30))
    assert {part: len(samples.labels) for part, samples in data.parts.items()} == {"train": 30, "val": 20, "test": 30}
    assert (data.parts["train"].labels.bincount() == 3).all()


@pytest.mark.parametrize("count", [1, 7, 100, 999, 1000])
def test_rows_are_distinct_and_spread_over_classes(count):
    labels = torch.cat([torch.zeros(700), torch.ones(290), torch.full((10,), 2)]).long()[torch.randperm(1000)]
    rows = spread_rows(labels, count)
    assert len(rows.unique()) == len(rows) == count
    assert ((labels[rows].bincount(minlength=3) - labels.bincount() * count / 1000).abs() < 1).all()


@pytest.mark.parametrize("parts", [("train", "val", "test"), ("train", "test"), ("train", "val"), ("train",), ()])
def test_folders_with_and_without_parts(parts, tmp_path):
    for part in parts or (".",):
        write_folder(tmp_path / part, count={"val": 2, "test": 3}.get(part, 10))
    (tmp_path / ".cache").mkdir()
    data = loaded(ImageFolder(str(tmp_path), image_size=8, batch_size=5))
    sizes = {part: len(samples.labels) for part, samples in data.parts.items()}
    expected = {
        ("train", "val", "test"): {"train": 30, "val": 6, "test": 9},
        ("train", "test"): {"train": 27, "val": 3, "test": 9},
        ("train", "val"): {"train": 27, "val": 3, "test": 6},
    }
    assert sizes == expected.get(parts, {"train": 24, "val": 3, "test": 3})
    assert data.classes == ("cat", "dog", "emu")
    files = [path for samples in data.parts.values() for path in samples.paths]
    assert len(set(files)) == len(files)
    for samples in data.parts.values():
        assert [data.classes[label] for label in samples.labels] == [path.parent.name for path in samples.paths]
    images, labels = next(iter(data.train_dataloader()))
    assert (images.shape, labels.shape) == ((5, 3, 8, 8), (5,))


def test_workers_load_the_same_images(tmp_path):
    write_folder(tmp_path)
    alone, helped = (loaded(ImageFolder(str(tmp_path), image_size=(8, 6), num_workers=n)) for n in (0, 1))
    for (images, labels), (others, same) in zip(alone.test_dataloader(), helped.test_dataloader(), strict=True):
        assert torch.equal(images, others)
        assert torch.equal(labels, same)


def test_folders_that_are_missing_or_empty_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"root \(.*nowhere\) is not a folder"):
        loaded(ImageFolder(str(tmp_path / "nowhere")))
    with pytest.raises(FileNotFoundError, match=r"has no pictures in folders of classes, such as .*cat/1.png"):
        loaded(ImageFolder(str(tmp_path)))
    write_folder(tmp_path / "train")
    (tmp_path / "train" / "fox").mkdir()
    with pytest.raises(FileNotFoundError, match=r"train has no pictures of fox; those of training are cat, dog, emu"):
        loaded(ImageFolder(str(tmp_path)))


def test_a_class_that_training_never_sees_is_named(tmp_path):
    write_folder(tmp_path / "train")
    write_folder(tmp_path / "test", classes=("dog", "gnu"))
    message = "test has gnu, a class that training never sees; those of training are cat, dog, emu"
    with pytest.raises(ValueError, match=message):
        loaded(ImageFolder(str(tmp_path)))


def test_a_part_may_lack_a_class_and_keeps_the_numbers_of_training(tmp_path):
    write_folder(tmp_path / "train")
    write_folder(tmp_path / "test", classes=("emu",))
    assert loaded(ImageFolder(str(tmp_path), image_size=8)).parts["test"].labels.tolist() == [2] * 4


def test_pictures_need_a_size_and_enough_of_them(tmp_path):
    write_picture(tmp_path / "cat" / "1.png")
    with pytest.raises(ValueError, match="too few images to set some aside for test"):
        loaded(ImageFolder(str(tmp_path)))
    write_folder(tmp_path)
    with pytest.raises(ValueError, match=r"image_size \(None\) must be given"):
        loaded(ImageFolder(str(tmp_path))).test_dataloader()


def test_grey_pictures_become_colour_and_it_is_said_once(tmp_path, caplog):
    write_folder(tmp_path)
    for path in sorted(tmp_path.rglob("*.png"))[::2]:
        write_picture(path, mode="L")
    data = loaded(ImageFolder(str(tmp_path), image_size=8))
    for _ in range(2):
        for loader in (data.train_dataloader(), data.val_dataloader(), data.test_dataloader()):
            for images, _ in loader:
                assert images.shape[1] == 3
    (record,) = caplog.records
    assert "is grey where colour is expected; it is converted, and so are others" in record.message


def test_pictures_of_every_kind_are_read_upright(tmp_path, caplog):
    grey = PictureReader(1)
    levels = np.array([[0, 256, 65535], [513, 40000, 1000]], dtype=np.uint16)
    Image.fromarray(levels).save(tmp_path / "deep.png")
    assert torch.equal(grey(tmp_path / "deep.png")[0], torch.from_numpy(levels // 256).byte())
    picture = Image.fromarray(np.arange(6, dtype=np.uint8).reshape(2, 3))
    exif = picture.getexif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    picture.save(tmp_path / "turned.png", exif=exif)
    assert grey(tmp_path / "turned.png").tolist() == [[[3, 0], [4, 1], [5, 2]]]
    assert not caplog.records
    write_picture(tmp_path / "red.png", (4, 3), (255, 0, 0))
    assert (grey(tmp_path / "red.png") == 76).all()
    assert "red.png is in colour where grey is expected" in caplog.text
    for mode in ("P", "RGBA", "CMYK", "1", "LA"):
        path = tmp_path / ("some.jpg" if mode == "CMYK" else "some.png")
        write_picture(path, (4, 3), mode=mode)
        assert PictureReader(3)(path).shape == (3, 3, 4)


def test_a_broken_picture_is_named(tmp_path):
    write_folder(tmp_path)
    whole = (tmp_path / "cat" / "0.png").read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"text"):
        (tmp_path / "cat" / "0.png").write_bytes(content)
        with pytest.raises(OSError, match=r"cat/0.png cannot be read as a picture: "):
            PictureReader(3)(tmp_path / "cat" / "0.png")


def test_pictures_are_resized_to_cover_and_cut_in_the_middle():
    ramp = torch.arange(40, dtype=torch.uint8).view(1, 1, 40).expand(3, 10, 40)  # brighter to the right
    middle = cover(ramp, (10, 10))
    assert middle.shape == (3, 10, 10)
    assert middle[0, 0].tolist() == list(range(15, 25))
    assert cover(ramp, (5, 4)).shape == (3, 5, 4)
    assert cover(ramp, (7, 31)).shape == (3, 7, 31)
    assert cover(ramp, (40, 3)).shape == (3, 40, 3)


def test_sizes_are_sides_or_height_by_width():
    sizes = [28, "28", "28x56", (28, 56), [28, 56], (28,)]
    assert [parse_size("sizes", size) for size in sizes] == [(28, 28)] * 2 + [(28, 56)] * 3 + [(28, 28)]
    for size in (0, "28x", "x", "1x2x3", (3, -1), "", "28.5"):
        with pytest.raises(ValueError, match=r"sizes must be a positive integer or \(height, width\), got "):
            parse_size("sizes", size)


@pytest.mark.parametrize("argument, least", [("batch_size", 1), ("num_workers", 0), ("limit", 1)])
def test_arguments_out_of_range_are_refused(argument, least):
    with pytest.raises(ValueError, match=rf"{argument} \({least - 1}\) must be at least {least}"):
        MNIST(**{argument: least - 1})
    with pytest.raises(ValueError, match="image_size must be a positive integer"):
        MNIST(image_size=0)


def test_files_are_what_the_user_names_and_what_is_in_folders(tmp_path):
    write_folder(tmp_path / "many", count=2)
    (tmp_path / "many" / "notes.txt").write_text("no picture")
    write_picture(tmp_path / "one.PNG")
    files = find_files([tmp_path / "one.PNG", tmp_path / "many"])
    assert [str(path.relative_to(tmp_path)) for path in files] == [
        "one.PNG", "many/cat/0.png", "many/cat/1.png", "many/dog/0.png", "many/dog/1.png", "many/emu/0.png",
        "many/emu/1.png",
    ]  # fmt: skip
    assert find_files([tmp_path / "many" / "notes.txt"])
    with pytest.raises(FileNotFoundError, match=r"files has '.*none.png', which does not exist"):
        find_files([tmp_path / "none.png"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"files has '.*empty', a folder without pictures \(.jpg"):
        find_files([tmp_path / "empty"])
