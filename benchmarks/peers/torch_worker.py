"""One process of a torch or DeepSpeed job; runs in an environment without jzero.

Started as `python -m benchmarks.peers.torch_worker JOB`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from benchmarks.peers import cases
from benchmarks.peers.torch_gpt import GPT, load_weights
from benchmarks.peers.worker import Job, Trainer, run

Step = Callable[[dict[str, torch.Tensor]], torch.Tensor]


def live_bytes() -> int:
    """Returns the bytes of all tensors of this process, each storage once."""
    gc.collect()
    storages: dict[int, int] = {}
    for found in gc.get_objects():
        if isinstance(found, DTensor):
            found = found.to_local()
        if type(found) in (torch.Tensor, torch.nn.Parameter):
            storage = found.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def make_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    """The optimizer of all torch cases; fused is torch's fastest on CPUs."""
    return torch.optim.AdamW(
        model.parameters(),
        lr=cases.LEARNING_RATE,
        weight_decay=cases.WEIGHT_DECAY,
        fused=True,
    )


def with_ddp(job: Job, model: GPT) -> Step:
    """Data parallelism. Its buckets outlive the step, so gradients live in them."""
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = make_optimizer(model)
    is_half = job.case.dtype == "bfloat16"

    def casts() -> AbstractContextManager[Any]:
        if is_half:
            return torch.autocast("cpu", torch.bfloat16)
        return contextlib.nullcontext()

    def step(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        with casts():
            loss = wrapped(batch["x"], batch["y"])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), cases.MAX_GRAD_NORM)
        optimizer.step()
        return loss

    return step


def with_fsdp2(job: Job, model: GPT) -> Step:
    """`fully_shard` on every block and on the whole, in its default settings."""
    half = torch.bfloat16 if job.case.dtype == "bfloat16" else None
    settings: dict[str, Any] = {
        "mesh": init_device_mesh("cpu", (job.num_processes,)),
        "reshard_after_forward": job.case.stage == 3,
        "mp_policy": MixedPrecisionPolicy(param_dtype=half),
    }
    for block in model.blocks():
        fully_shard(block, **settings)
    fully_shard(model, **settings)
    optimizer = make_optimizer(model)

    def step(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss = model(batch["x"], batch["y"])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), cases.MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def make_engine(job: Job, model: GPT) -> Any:
    """The engine of DeepSpeed, with limits like those of the others."""
    # Loaded here: importing it takes seconds, which the torch cases need not wait.
    deepspeed = importlib.import_module("deepspeed")
    settings = {
        "train_micro_batch_size_per_gpu": job.size.rows,
        "gradient_clipping": cases.MAX_GRAD_NORM,
        "bf16": {"enabled": job.case.dtype == "bfloat16"},
        "steps_per_print": 2**30,
        "zero_optimization": {
            "stage": job.case.stage,
            # In elements of the gradients, which are float32 at most.
            "reduce_bucket_size": cases.WINDOW_BYTES // 4,
            "allgather_bucket_size": cases.WINDOW_BYTES // 4,
            "stage3_prefetch_bucket_size": cases.PREFETCH_BYTES // 4,
            "stage3_param_persistence_threshold": cases.PERSISTENCE_ELEMS,
        },
    }
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=make_optimizer(model),
        config=settings,
        dist_init_required=False,
    )
    return engine


def with_deepspeed(job: Job, model: GPT) -> Step:
    """A step of DeepSpeed's engine."""
    engine = make_engine(job, model)

    def step(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss = engine(batch["x"], batch["y"])
        engine.backward(loss)
        engine.step()
        return loss

    return step


def join(job: Job) -> None:
    """Tells torch which process of how many this is, and that it has one thread."""
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(job.rank),
        "LOCAL_RANK": str(job.rank),
        "WORLD_SIZE": str(job.num_processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(job.port),
    }


def build(job: Job) -> Trainer:
    """Joins the other processes and wraps the model."""
    join(job)
    versions = {"torch": torch.__version__}
    if job.case.framework == "deepspeed":
        deepspeed = importlib.import_module("deepspeed")
        versions["deepspeed"] = deepspeed.__version__
        deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    else:
        distributed.init_process_group("gloo")
    model = GPT(job.size)
    load_weights(model, job.weights())
    if job.case.framework == "deepspeed":
        step = with_deepspeed(job, model)
    else:
        step = (with_fsdp2 if job.case.stage else with_ddp)(job, model)

    def advance(batch: dict[str, np.ndarray]) -> float:
        tensors = {k: torch.from_numpy(v.astype(np.int64)) for k, v in batch.items()}
        return float(step(tensors).detach())

    return Trainer(step=advance, state_bytes=live_bytes, versions=versions)


if __name__ == "__main__":
    run(build)
