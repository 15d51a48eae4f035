"""Two processes on a CPU do what one does: losses, gradients, checkpoints, phases and the command line."""

import csv
import os
import socket

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging

from mmpos import create_encoding
from mmpos.cli import run_name
from mmpos.models import MultimodalTransformer, SeriesClassifier, TextTransformer, VideoTransformer
from mmpos.training import FullyShardedStrategy
from mmpos.training.checkpoints import check_checkpoint_path
from mmpos.training.sharding import materialise
from tests import forks
from tests.configurations import CONFIGURATIONS
from tests.training import two_processes as processes

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:.*{text}")
    for text in (
        "does not have many workers",
        "returned a view tensor",
        "You defined a `validation_step`",
        "The dirpath has changed",
        "isinstance.treespec, LeafSpec",
    )
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="module")
def alone(folder):
    """What one process gives, without a strategy."""
    return {name: processes.fit(name, folder / f"{name}-alone") for name in processes.MODULES}


@pytest.fixture(scope="module")
def two(folder, alone):
    """What each of two processes gives; they start after one process has left a sharded checkpoint to go on from."""
    before = dict(os.environ)
    try:
        processes.fit("image", folder / "one", FullyShardedStrategy())
        torch.distributed.destroy_process_group()  # its threads would be missing in a fork
        with socket.socket() as place:
            place.bind(("127.0.0.1", 0))
            port = place.getsockname()[1]
        forks.together(folder, processes.work, folder, port)
        yield [torch.load(folder / f"results{rank}.pt") for rank in range(2)]
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        os.environ.clear()
        os.environ.update(before)


def check_same(got, want, steps=slice(None)):
    assert got["losses"] == pytest.approx(want["losses"][steps], abs=1e-5)
    assert len(want["losses"]) == processes.STEPS * processes.EPOCHS
    for name, grad in want["grads"].items():
        torch.testing.assert_close(got["grads"][name], grad, atol=1e-5 * grad.abs().max().item() + 1e-8, rtol=0)
        felt = grad.abs() > 1e-7  # AdamW makes a whole step of the rounding error of a gradient that is 0
        torch.testing.assert_close(got["learned"][name][felt], want["learned"][name][felt], atol=2e-5, rtol=0)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("name", processes.MODULES)
def test_two_processes_train_as_one_does(two, alone, name, strategy):
    for results in two:
        check_same(results[name, strategy], alone[name])
    assert all(grad.abs().max() > 1e-11 for grad in alone[name]["grads"].values())


def test_two_processes_go_on_with_the_shards_of_one(two, alone):
    check_same(two[0]["resumed"], alone["image"], slice(processes.STEPS, None))


def test_one_process_goes_on_with_the_shards_of_two(two, alone, folder):
    shards = folder / "image-fsdp" / "epoch=0.ckpt"
    assert len(list(shards.glob("*.distcp"))) == 2
    got = processes.fit("image", folder / "back", FullyShardedStrategy(), ckpt_path=shards)
    check_same(got, alone["image"], slice(processes.STEPS, None))


def test_a_model_of_the_meta_device_trains_as_one_that_was_made_directly(two, alone):
    check_same(two[0]["meta"], alone["image"])


@pytest.mark.parametrize(
    "how", ["policy", "real", "bf16-true-ddp", "bf16-true-fsdp", "bf16-mixed-ddp", "bf16-mixed-fsdp"]
)
def test_blocks_get_the_phases_of_full_precision_to_the_bit(two, how):
    for results in two:
        assert len(results["phases"][how]) >= processes.SIZE["depth"]
        for cos, alone_cos, sin, alone_sin in results["phases"][how]:
            assert cos.dtype == sin.dtype == torch.float32
            assert torch.equal(cos, alone_cos)
            assert torch.equal(sin, alone_sin)


def test_gradients_of_encodings_come_in_full_precision_from_blocks_that_are_cast(two):
    for name, (got, want) in two[0]["cast"].items():
        assert got.dtype == torch.float32, name
        torch.testing.assert_close(got, want, atol=0.05 * want.abs().max().item() + 1e-6, rtol=0)


def test_context_parallelism_of_torch_takes_coordinates_with_the_tokens(two):
    places = torch.cat([results["context"][2] for results in two])
    assert sorted(places.tolist()) == list(range(16))
    assert places[:8].tolist() == [0, 1, 2, 3, 12, 13, 14, 15]  # as much to do under a causal mask
    for got, want, _ in (results["context"] for results in two):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=0)


@pytest.mark.parametrize("experiment, table", [("text/t5", "lengths.csv"), ("series/learned", "forecasts.csv")])
def test_one_process_prints_and_writes_for_both(two, folder, experiment, table):
    shown, silent = (results[experiment.partition("/")[0]] for results in two)
    assert silent == ""
    (run,) = (folder / "runs" / experiment).iterdir()
    assert run.name == "version_0"
    assert (run / table).is_file()
    assert f"runs/{experiment}/version_0/checkpoints/best.ckpt" in shown
    assert len(list((run / "checkpoints" / "best.ckpt").glob("*.distcp"))) == 2
    with (run / "metrics.csv").open(newline="") as file:
        assert sum(bool(row[key]) for row in csv.DictReader(file) for key in row if key.startswith("test_")) >= 1


def test_shards_are_refused_where_a_file_must_be(two, folder):
    shards = str(folder / "image-fsdp" / "epoch=0.ckpt")
    check_checkpoint_path(shards, shards=True)
    with pytest.raises(ValueError, match=r"epoch=0\.ckpt is in shards, which configs/trainer/fsdp\.yaml reads"):
        check_checkpoint_path(shards)


def test_tensor_parallelism_is_refused():
    class Two:
        def size(self):
            return 2

    module = processes.image()
    module._device_mesh = {"tensor_parallel": Two()}
    with pytest.raises(ValueError, match=r"tensor_parallel_size \(2\) must be 1"):
        module.configure_model()


def test_averaged_weights_are_refused_with_shards():
    class One:
        def size(self):
            return 1

    module = processes.image()
    module._device_mesh = {"tensor_parallel": One()}
    module._trainer = Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[EMAWeightAveraging()]
    )
    with pytest.raises(ValueError, match="WeightAveraging needs all weights in one process"):
        module.configure_model()


def test_how_a_run_is_done_does_not_name_it():
    assert run_name("configs/text/rope.yaml", "configs/trainer/fsdp.yaml") == "text/rope"
    assert run_name("configs/trainer/fsdp.yaml") == "unnamed"


def shared():
    """The embedding is the head too."""
    return TextTransformer(32, 12, depth=1, num_heads=2, bias={"name": "T5Bias"}, rotary={"name": "RoPE"})


def multimodal():
    return MultimodalTransformer(32, patch_width=4, dim=12, depth=1, num_heads=2, rule="sequential")


def video():
    return VideoTransformer((2, 8, 8), (1, 4, 4), dim=12, depth=1, num_heads=2, additive={"name": "FactorizedTable"})


def sequence():
    additive = {"name": "LearnableFourier", "fourier_dim": 6, "hidden_dim": 7}
    return SeriesClassifier(3, 4, dim=12, depth=1, num_heads=2, additive=additive)


@pytest.mark.parametrize("make", [processes.image, processes.series, shared, multimodal, video, sequence])
def test_what_is_made_from_the_meta_device_is_what_is_made_directly(make):
    torch.manual_seed(3)
    want = make()
    torch.manual_seed(4)
    with torch.device("meta"):
        network = make()
    torch.manual_seed(3)
    assert materialise(network, torch.device("cpu"))
    for name, tensor in want.state_dict().items():
        assert torch.equal(network.state_dict()[name], tensor), name
    assert len(list(network.parameters())) == len(list(want.parameters()))  # what is shared is still
    assert not materialise(network, torch.device("cpu"))


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_encodings_draw_the_same_numbers_on_the_meta_device(name):
    for arguments in CONFIGURATIONS[name]:
        torch.manual_seed(3)
        want, after = create_encoding(name, **arguments), torch.rand(1)
        torch.manual_seed(3)
        with torch.device("meta"):
            encoding = create_encoding(name, **arguments)
        materialise(encoding, torch.device("cpu"))
        assert torch.equal(torch.rand(1), after)  # as many
        for key, tensor in want.state_dict().items():
            assert torch.equal(encoding.state_dict()[key], tensor), (key, arguments)


def test_a_module_that_cannot_be_made_anew_is_named():
    class Bare(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.empty(3, device="meta"))

    with pytest.raises(TypeError, match="Bare has parameters on the meta device, but no reset_parameters"):
        materialise(torch.nn.Sequential(Bare()), torch.device("cpu"))
