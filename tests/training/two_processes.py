"""What each process of test_many_processes.py does; run by one process too, it gives what that is compared with."""

import contextlib
import io
import itertools
import os
from pathlib import Path

import torch
import torch.nn.functional as F
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader, DistributedSampler

from mmpos import RoPE, Sinusoidal, grid_coords, sequence_coords
from mmpos.cli import main
from mmpos.training import ForecastModel, FullyShardedStrategy, ImageClassifier, LanguageModel
from mmpos.training.sharding import shard

CONFIGS = Path(__file__).parents[2] / "configs"
BASE = CONFIGS / "base.yaml"
SIZE = {"dim": 16, "depth": 2, "num_heads": 2}
BATCH, STEPS, EPOCHS = 4, 2, 2  # of a step, of all processes; of an epoch


def image(kind=ImageClassifier):
    """A table, frequencies of each layer and a bias that are learned."""
    slots = {"additive": {"name": "LearnedTable"}, "bias": {"name": "SwinBias"}}
    rotary = {"name": "RoPE", "axes": 2, "base": 10.0, "spectrum": {"name": "Mixed"}}
    return kind((8, 12), 2, rotary=rotary, class_token=True, **slots, **SIZE)


def text():
    """Learned frequencies, factors of heads, buckets, a network, and a table that queries are multiplied by."""
    layers = [
        {"bias": {"name": "T5Bias"}},
        {"bias": {"name": "FIRE"}},
        {"bias": {"name": "RelativeLogits", "extent": 5}},
    ]
    rotary = {"name": "RoPE", "spectrum": {"name": "Learned"}}
    return LanguageModel(32, dim=16, depth=3, num_heads=2, rotary=rotary, layers=layers, scale={"name": "SSMax"})


def series():
    """Learned waves of time and slopes."""
    return ForecastModel(3, additive={"name": "Time2Vec"}, bias={"name": "ALiBi", "learned": True}, **SIZE)


def samples(name):
    draws, count = torch.Generator().manual_seed(7), BATCH * STEPS
    if name == "image":
        labels = torch.randint(10, (count,), generator=draws)
        return list(zip(torch.randn(count, 1, 8, 12, generator=draws), labels, strict=True))
    if name == "text":
        return list(torch.randint(32, (count, 14), generator=draws))
    values, targets = torch.randn(count, 12, 2, generator=draws), torch.randn(count, 6, 2, generator=draws)
    times = torch.arange(18).expand(count, 18) + torch.arange(count)[:, None]
    return [{"values": v, "targets": y, "times": t} for v, y, t in zip(values, targets, times, strict=True)]


MODULES = {"image": image, "text": text, "series": series}


class Record(Callback):
    """Losses of the steps over all processes, and gradients of encodings in the last one."""

    def __init__(self):
        self.losses, self.grads = [], {}

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.losses.append(trainer.strategy.reduce(outputs["loss"].detach().clone(), reduce_op="mean").item())

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.grads = {name: whole(parameter.grad) for name, parameter in of_encodings(pl_module)}


def of_encodings(module):
    return [(name, parameter) for name, parameter in module.named_parameters() if "encodings" in name]


def whole(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def fit(name, folder, strategy="auto", devices=1, *, module=None, ckpt_path=None, max_epochs=EPOCHS, **options):
    """Losses, gradients and learned numbers of encodings after training; a folder has a checkpoint of each epoch."""
    record = Record()
    keep = ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)
    trainer = Trainer(
        accelerator="cpu",
        devices=devices,
        strategy=strategy,
        max_epochs=max_epochs,
        logger=False,
        use_distributed_sampler=False,
        callbacks=[record, keep],
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    torch.manual_seed(0)
    module = MODULES[name]() if module is None else module
    torch.manual_seed(0)
    rows = samples(name)
    share = DistributedSampler(rows, devices, int(os.environ.get("LOCAL_RANK", 0)), shuffle=False)
    trainer.fit(module, DataLoader(rows, batch_size=BATCH // devices, sampler=share), ckpt_path=ckpt_path)
    learned = {key: whole(parameter) for key, parameter in of_encodings(module)}
    return {"losses": record.losses, "grads": record.grads, "learned": learned}


def given_to_blocks(network):
    """The rotations that blocks are given from now on."""
    given = []
    for block in network.blocks:
        block.register_forward_pre_hook(lambda _, inputs: given.append(inputs[1].rotation))
    return given


def pairs(given, network, coords, prefix=0):
    """Rotations that were given, beside those of the encodings of a network alone."""
    alone = [rope(coords).with_prefix(prefix) for rope in network.encodings.rotary]
    return [(got.cos, want.cos, got.sin, want.sin) for got, want in zip(given, alone, strict=True)]


def made(make, *args):
    torch.manual_seed(0)
    return make(*args)


def phases(module, strategy, folder, **options):
    """Rotations of the first step of training."""
    given = given_to_blocks(module.network)
    fit("image", folder, strategy, 2, module=module, limit_train_batches=1, max_epochs=1, **options)
    return pairs(given, made(image).network, grid_coords(4, 6), prefix=1)


class Mixed(ImageClassifier):
    """Blocks in bfloat16, by a policy of FSDP2."""

    def configure_model(self):
        shard(self.network, self.device_mesh["data_parallel"], MixedPrecisionPolicy(param_dtype=torch.bfloat16))


def real_coordinates(mesh):
    """Rotations of blocks in bfloat16 at real coordinates, and gradients of encodings beside those in float32."""
    tokens, coords = torch.stack(samples("text")), 5000 + 0.37 * torch.arange(14, dtype=torch.float64)[:, None]
    cast, plain = made(text).network, made(text).network
    given = given_to_blocks(cast)
    shard(cast, mesh, MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    for network in (cast, plain):
        network(tokens, coords=coords)
        network(tokens, coords=coords - 5000).float().square().mean().backward()
    grads = {name: parameter.grad for name, parameter in plain.named_parameters() if "encodings" in name}
    got = {name: whole(parameter.grad) for name, parameter in cast.named_parameters() if name in grads}
    return pairs(given[:3], plain, coords), {name: (got[name], grad) for name, grad in grads.items()}


def context(mesh):
    """Attention of torch's context parallelism, to which coordinates go beside the tokens, and the whole one."""
    torch.manual_seed(2)
    q, k, v = torch.randn(3, 2, 4, 16, 8)
    coords, rope, table = sequence_coords(16, offset=5000), RoPE(8), Sinusoidal(8)
    turned = rope(coords)
    want = F.scaled_dot_product_attention(turned.apply(q), turned.apply(k), v) + table(coords)
    buffers = context_parallel(mesh, buffers=[q, k, v, coords], buffer_seq_dims=[2, 2, 2, 0])
    with buffers, sdpa_kernel(SDPBackend.MATH):  # for others torch searches how to share them out for 10 s
        turned, places = rope(coords), coords.flatten() - 5000
        got = F.scaled_dot_product_attention(turned.apply(q), turned.apply(k), v) + table(coords)
    return got, want[..., places, :], places


def run(*args):
    """What a command of the command line prints."""
    few = [f"--trainer.limit_{part}_batches=2" for part in ("train", "val", "test")]
    small = [
        "--model.dim=16",
        "--model.depth=1",
        "--model.num_heads=2",
        "--trainer.max_epochs=1",
        "--data.batch_size=4",
    ]
    how = ["--config", CONFIGS / "trainer" / "fsdp.yaml", "--trainer.devices=2", "--trainer.accelerator=cpu"]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        args = ("fit", *args, *how, *few, *small, "--trainer.enable_progress_bar=false")
        main([str(arg) for arg in args], base_config=BASE)
    return out.getvalue()


def work(rank, folder, port):
    told = {"LOCAL_RANK": rank, "NODE_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "COLUMNS": 200}
    os.environ.update({name: str(value) for name, value in told.items()})
    results = {}
    for name in MODULES:
        results[name, "ddp"] = fit(name, folder / f"{name}-ddp", "ddp", 2)
        results[name, "fsdp"] = fit(name, folder / f"{name}-fsdp", FullyShardedStrategy(), 2)
    one = folder / "one" / "epoch=0.ckpt"
    results["resumed"] = fit("image", folder / "resumed", FullyShardedStrategy(), 2, ckpt_path=one)
    with torch.device("meta"):
        module = image()
    results["meta"] = fit("image", folder / "meta", FullyShardedStrategy(), 2, module=module)
    results["phases"] = {"policy": phases(made(image, Mixed), FullyShardedStrategy(), folder / "policy")}
    for precision, name in itertools.product(("bf16-true", "bf16-mixed"), ("ddp", "fsdp")):
        strategy = FullyShardedStrategy() if name == "fsdp" else name
        place = f"{precision}-{name}"
        results["phases"][place] = phases(made(image), strategy, folder / place, precision=precision)
    mesh = init_device_mesh("cpu", (2,))
    results["phases"]["real"], results["cast"] = real_coordinates(mesh)
    results["context"] = context(mesh)
    os.chdir(folder)
    results["text"] = run("--config", CONFIGS / "text" / "t5.yaml", "--lengths=1", "--how=extend")
    results["series"] = run("--config", CONFIGS / "series" / "learned.yaml")
    torch.save(results, folder / f"results{rank}.pt")
