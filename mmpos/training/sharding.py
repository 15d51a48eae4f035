"""Training on many processes with FSDP2: what is sharded, what stays exact, and a strategy that takes all processes."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from ..encodings import Encoding

FULL = MixedPrecisionPolicy(cast_forward_inputs=False)
"""Parameters in their own dtype, inputs as they come."""


class Sharded(LightningModule):
    """A LightningModule on one or many processes: its ``network`` is sharded where the strategy gives a mesh."""

    network: Any

    def configure_model(self) -> None:
        """Shards the network, once.

        Raises:
            ValueError: If the mesh is for tensor parallelism too, which the models do not have, or weights are
                averaged, which Lightning cannot do with shards.
        """
        mesh = self.device_mesh
        if mesh is None:
            return
        if mesh["tensor_parallel"].size() > 1:
            raise ValueError(
                f"tensor_parallel_size ({mesh['tensor_parallel'].size()}) must be 1: models are sharded over "
                "data_parallel_size processes only"
            )
        trainer: Any = self.trainer
        if any(isinstance(callback, WeightAveraging) for callback in trainer.callbacks):
            raise ValueError("WeightAveraging needs all weights in one process: take configs/trainer/ddp.yaml")
        shard(self.network, mesh["data_parallel"])

    def log_loss(self, loss: Tensor, samples: int) -> None:
        """Logs ``train_loss``, the mean over an epoch and all processes."""
        self.log("train_loss", loss, on_step=False, on_epoch=True, prog_bar=True, batch_size=samples, sync_dist=True)


class FullyShardedStrategy(ModelParallelStrategy):
    """Lightning's strategy for FSDP2 with every process in the data-parallel group, however many there are.

    Args:
        save_distributed_checkpoint: Whether a checkpoint is a folder to which each process writes its share, or one
            file that process 0 writes.
        process_group_backend: "nccl", "gloo" or another backend; the device's own unless given.
        timeout: How long a process waits for the others.
    """

    def __init__(
        self,
        save_distributed_checkpoint: bool = True,
        process_group_backend: str | None = None,
        timeout: timedelta = timedelta(minutes=30),
    ):
        super().__init__("auto", 1, save_distributed_checkpoint, process_group_backend, timeout)

    def setup_environment(self) -> None:
        """Makes the mesh over all processes."""
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()


def shard(network: nn.Module, mesh: DeviceMesh, policy: MixedPrecisionPolicy = FULL) -> None:
    """Shards the parameters of a network over processes with FSDP2: a group for each block, one for what is around.

    Phases keep the bits that they have on one process: encodings keep the dtype of their parameters, and coordinates
    and rotations are never cast. Each module of an encoding is a group of its own, for learned frequencies stay in
    float32 beside weights that are cast; these groups are gathered when the network begins, since biases are evaluated
    where the layers are. A network on the meta device is made on the mesh's device first. A second call does nothing.

    Args:
        network: A model whose blocks are the members of its ``blocks``, as those of mmpos and of timm are.
        mesh: The processes, which have different batches.
        policy: Mixed precision of the blocks: tokens are cast to its ``param_dtype`` where they enter a block and to
            its ``output_dtype``, float32 unless given, where they leave it. Other inputs of a block are left alone.
    """
    if isinstance(network, FSDPModule):
        return
    materialise(network, torch.device(mesh.device_type))
    parts = [fully_shard(part, mesh=mesh, mp_policy=FULL, reshard_after_forward=False) for part in _parts(network)]
    within = replace(policy, cast_forward_inputs=False)
    if policy.param_dtype is not None:
        within = replace(within, output_dtype=policy.output_dtype or torch.float32)
    for name, block in list(network.named_modules()):
        if name.rpartition(".")[0].endswith("blocks"):
            fully_shard(block, mesh=mesh, mp_policy=within)
            if policy.param_dtype is not None:
                block.register_forward_pre_hook(partial(_cast_tokens, policy.param_dtype))
    fully_shard(network, mesh=mesh, mp_policy=FULL)
    network.register_forward_pre_hook(partial(_gather, parts))


def materialise(network: nn.Module, device: torch.device) -> bool:
    """Makes what is on the meta device of a network on another one, and draws it as a direct construction does.

    Returns:
        Whether there was any.

    Raises:
        TypeError: If a module has parameters of its own on the meta device, but no ``reset_parameters``.
    """
    whole = isinstance(network, Encoding)  # which draws what its parts have as well
    parts = [] if whole else [materialise(part, device) for part in network.children()]
    tensors = (*network.parameters(recurse=whole), *network.buffers(recurse=whole))
    if own := any(tensor.is_meta for tensor in tensors):
        network.to_empty(device=device, recurse=whole)
    reset = getattr(network, "reset_parameters", None)
    if own and reset is None:
        raise TypeError(f"{type(network).__name__} has parameters on the meta device, but no reset_parameters")
    if reset is not None and (own or any(parts)):
        reset()
    return own or any(parts)


def whole_network(module: LightningModule) -> Any:
    """The network of a module, with all its weights on every process: itself, or a copy of one that is sharded."""
    network = getattr(module, "network", None)
    return _join(module) if isinstance(network, FSDPModule) else network


def _parts(network: nn.Module) -> Iterator[nn.Module]:
    """The modules of encodings that have parameters of their own, inner ones first."""
    encodings = [module for module in network.modules() if isinstance(module, Encoding)]
    parts = dict.fromkeys(part for encoding in encodings for part in encoding.modules())
    return (part for part in reversed(parts) if any(True for _ in part.parameters(recurse=False)))


def _join(module: Any) -> Any:
    state = get_model_state_dict(module.network, options=StateDictOptions(full_state_dict=True))
    with torch.device("meta"):  # draws no random numbers
        copy = type(module)(**module.hparams).network
    copy.load_state_dict(state, assign=True)
    return copy.train(module.network.training)


def _gather(parts: list[FSDPModule], network: nn.Module, inputs: tuple[Any, ...]) -> None:
    for part in parts:
        part.unshard()


def _cast_tokens(dtype: torch.dtype, block: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return inputs[0].to(dtype), *inputs[1:]
