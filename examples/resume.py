"""Training that may be killed at any moment, and goes on with any number of devices.

    python -m examples.resume --devices 8      # kill it whenever you like
    python -m examples.resume --devices 4      # goes on where it was, on half of them
    python -m examples.generate out/resume/model   # the result in plain Flax

Weights, optimizer, schedule and the position in the data come back as they were. In
the end the weights are written as safetensors, which need no jzero.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from flax.training.train_state import TrainState

import jzero
from examples.generate import arguments_of, text_of, write
from examples.gpt import build
from examples.text import batches, standard_library


def write_text(state: TrainState, *arguments: Any) -> jax.Array:
    """Writes text with the weights of a state."""
    return write({"params": state.params}, *arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("out/resume"))
    parser.add_argument("--prompt", default="    def __init__(self")
    for name, default, text in [
        ("devices", 8, "virtual ones, where there are only CPUs"),
        ("steps", 100, "how long to train"),
        ("every", 10, "steps between checkpoints"),
        ("rows", 16, "of a batch"),
        ("length", 64, "bytes in a row"),
        ("layers", 2, "of the model"),
        ("width", 64, "of the model"),
    ]:
        parser.add_argument(f"--{name}", type=int, default=default, help=text)
    settings = parser.parse_args(arguments)
    jax.config.update("jax_num_cpu_devices", settings.devices)
    shape = {"rows": settings.rows, "length": settings.length}
    built = build(
        **shape, steps=settings.steps, layers=settings.layers, width=settings.width
    )
    data = iter(batches(standard_library(), **shape))
    step = jzero.shard_train_step(built.step_fn, stage=3)
    run, model = settings.folder / "run", settings.folder / "model"
    with jzero.Checkpointer(run, step, keep=3) as ckpt:
        state, start = ckpt.restore_or_init(
            built.create_state, *built.sample_args, data=data
        )
        print(f"begins with step {start} on {jax.device_count()} devices", flush=True)
        for i in range(start, settings.steps):
            state, metrics = step(state, step.shard_batch(next(data)))
            print(f"step {i:5d}  loss {metrics['loss']:.4f}", flush=True)
            if (i + 1) % settings.every == 0 or i + 1 == settings.steps:
                ckpt.save(i, state, data=data)
    done = jzero.checkpoint.consolidate(run, model, what="params", overwrite=True)
    print(f"wrote {done.num_tensors} tensors of step {done.step} to {done.folder}")
    writer = step.eval_step(write_text, batch_argnums=())
    print(text_of(writer(state, *arguments_of(settings.prompt))))


if __name__ == "__main__":
    main()
