"""Training a language model, and what it says of longer rows."""

import csv
import math
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer

from mmpos.data import TextBytes
from mmpos.training import LanguageModel, LengthEvaluation
from mmpos.training.lengths import tune
from mmpos.training.text import cross_entropy

# Between Lightning and PyTorch.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*is smaller than the logging interval"),
]

SMALL = {"dim": 16, "depth": 1, "num_heads": 2}


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in range(40):
        (folder / f"{name:02}.txt").write_text("".join(chr(97 + (name + i * i) % 26) for i in range(200)))
    return TextBytes(files=[str(folder)], length=16, batch_size=8, cache=str(tmp_path / "cache"), limit=6)


def trainer(folder, **options):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return Trainer(
        **{"default_root_dir": folder, "accelerator": "cpu", "enable_model_summary": False, **quiet, **options}
    )


def bits_by_hand(network, row):
    """Bits of each byte of a row but the first, in float64, one prefix at a time."""
    total = []
    for end in range(1, len(row)):
        logits = network(row[None, :end])[0, -1].double()
        total.append(-logits.log_softmax(-1)[row[end]] / math.log(2))
    return torch.stack(total)


def test_bits_are_those_of_each_byte_given_what_comes_before_it(data, tmp_path):
    model = LanguageModel(**SMALL, rotary={"name": "RoPE"}, separator=None).eval()
    data.setup()
    batch = next(iter(data.val_dataloader()))[:2]
    got = model.predict_step(batch, 0)
    for row, bits in zip(batch, got, strict=True):
        torch.testing.assert_close(bits.double(), bits_by_hand(model.network, row), atol=1e-4, rtol=1e-4)


def test_lengths_see_the_same_bytes_with_more_before_them(data, tmp_path):
    model = LanguageModel(**SMALL, rotary={"name": "RoPE"})
    data.setup()
    callback = LengthEvaluation(lengths="1,4", how=["extend", "ntk"], last=5, limit=None)
    trainer(tmp_path, callbacks=[callback]).test(model, data, verbose=False)
    texts = data.documents("test", 64)
    with (tmp_path / "lengths.csv").open() as file:
        rows = {(row["length"], row["how"]): row for row in csv.DictReader(file)}
    assert set(rows) == {("16", "extend"), ("16", "ntk"), ("64", "extend"), ("64", "ntk")}
    with torch.no_grad():
        for length, how in ((16, "extend"), (64, "extend"), (64, "ntk")):
            network = model.network.at_length(length, how, trained=16).eval()
            parts = [text[start : start + length + 1] for text in texts for start in range(0, 64, length)]
            bits = torch.stack([bits_by_hand(network, part) for part in parts])
            row = rows[str(length), how]
            assert float(row["bits"]) == pytest.approx(bits.mean().item(), abs=1e-4)
            last = bits.unflatten(0, (len(texts), -1))[:, -1, -5:]
            assert float(row["last_bits"]) == pytest.approx(last.mean().item(), abs=1e-4)
            assert int(row["documents"]) == len(texts)
    assert float(rows["16", "extend"]["bits"]) == float(rows["16", "ntk"]["bits"])


def test_a_way_that_does_not_apply_is_left_out_and_said_why(data, tmp_path, capsys):
    model = LanguageModel(**SMALL, bias={"name": "ALiBi"})
    callback = LengthEvaluation(lengths=2, how="extend,yarn")
    trainer(tmp_path, callbacks=[callback]).test(model, data, verbose=False)
    printed = capsys.readouterr().out
    assert "how='yarn' scales a rotary encoding, but the rotary slot has none" in printed
    assert (tmp_path / "lengths.csv").read_text().count("yarn") == 0


def test_tuned_heads_do_better_and_nothing_else_is_tuned(data, tmp_path):
    model = LanguageModel(**SMALL)
    data.setup()
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    network, texts = model.network.at_length(64, "head_scale"), data.documents("train", 64)
    with torch.no_grad():  # a tuned factor can be told from one that is not where attention matters
        network.blocks[0].attn.qkv.weight.mul_(30)
        before["network.blocks.0.attn.qkv.weight"] *= 30
    loss = cross_entropy(network(texts[:, :-1]), texts[:, 1:]).mean().item()
    tune(network, texts, steps=60)
    assert cross_entropy(network(texts[:, :-1]), texts[:, 1:]).mean().item() < loss
    assert (network.encodings.scale[0].factors - 1).abs().min() > 0.01
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])
        assert parameter.grad is None
    callback = LengthEvaluation(lengths="1,4", how=["head_scale"])
    trainer(tmp_path, callbacks=[callback]).test(model, data, verbose=False)
    assert (tmp_path / "lengths.csv").read_text().count("head_scale") == 2


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"lengths": "1,3"}, "lengths must be powers of 2, as multiples of the trained length, got 3"),
        ({"how": "extend,zoom"}, "how has 'zoom'; known: extend, interpolate, ntk, yarn, log_scale"),
        ({"last": 0}, r"every_n_epochs \(1\) must not be negative, last \(0\) and limit \(32\) positive"),
    ],
)
def test_evaluations_that_make_no_sense(arguments, message):
    with pytest.raises(ValueError, match=message):
        LengthEvaluation(**arguments)


def test_documents_that_are_too_short_are_said_before_training(data, tmp_path):
    with pytest.raises(ValueError, match="no document of the test part has more than 256 bytes"):
        trainer(tmp_path, callbacks=[LengthEvaluation(lengths=16)], max_epochs=1).fit(LanguageModel(**SMALL), data)


def test_positions_vary_in_training_only_and_by_their_own_source(data, tmp_path):
    seen = []
    model = LanguageModel(**SMALL, rotary={"name": "RoPE"}, positions={"subsample": 100})
    forward = model.network.forward
    model.network.forward = lambda tokens, coords=None: (seen.append(coords), forward(tokens, coords=coords))[1]
    torch.manual_seed(5)
    run = trainer(tmp_path, max_steps=3, limit_val_batches=1, num_sanity_val_steps=0, check_val_every_n_epoch=1)
    run.fit(model, data)
    run.validate(model, data, verbose=False)
    training = [coords for coords in seen if coords is not None]
    assert len(training) == 3
    assert len(seen) > 3  # validation counts
    assert max(coords.max() for coords in training) > 30
    checkpoint = {}
    model.on_save_checkpoint(checkpoint)
    again = LanguageModel(**SMALL, rotary={"name": "RoPE"}, positions={"subsample": 100})
    again.draws_state = checkpoint["draws"]
    again.trainer = run
    again.on_fit_start()
    coords = torch.arange(16)[None, :, None]
    assert torch.equal(again.positions.vary(coords, again.draws), model.positions.vary(coords, model.draws))


def test_a_checkpoint_of_another_model_is_refused(data, tmp_path):
    model = LanguageModel(**SMALL, rotary={"name": "RoPE"})
    path = Path(tmp_path) / "a.ckpt"
    run = trainer(tmp_path, max_steps=1, limit_val_batches=0)
    run.fit(model, data)
    run.save_checkpoint(path)
    loaded = LanguageModel.load_from_checkpoint(path, positions={"offset": 4}, lr=0.5)
    assert torch.equal(loaded.network.head.weight, model.network.head.weight)
    other = LanguageModel(**{**SMALL, "depth": 2}, rotary={"name": "RoPE"})
    with pytest.raises(ValueError, match="the checkpoint is of another model: depth is 1 in the checkpoint but 2 here"):
        trainer(tmp_path).test(other, data, ckpt_path=path, verbose=False)
