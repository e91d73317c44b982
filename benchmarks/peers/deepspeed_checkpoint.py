"""One process of a DeepSpeed job that trains one step and saves a checkpoint.

Started as `python -m benchmarks.peers.deepspeed_checkpoint JOB FOLDER`, in an
environment without jzero.
"""

from __future__ import annotations

import importlib
import sys

import numpy as np
import torch

from benchmarks.peers.torch_gpt import GPT, load_weights
from benchmarks.peers.torch_worker import join, make_engine
from benchmarks.peers.worker import Job


def main() -> None:
    job, folder = Job.parse(sys.argv[1]), sys.argv[2]
    join(job)
    deepspeed = importlib.import_module("deepspeed")
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    model = GPT(job.size)
    load_weights(model, job.weights())
    engine = make_engine(job, model)
    batch = {
        name: torch.from_numpy(values.astype(np.int64))
        for name, values in job.batch(job.tokens(), 0).items()
    }
    # The moments come into being with the first step.
    engine.backward(engine(batch["x"], batch["y"]))
    engine.step()
    engine.save_checkpoint(folder, tag="1")


if __name__ == "__main__":
    main()
