"""One process that updates by DeepSpeedCPUAdam or torch's fused AdamW, when told to.

    python benchmarks/host_adam_peers.py deepspeed 100000000 2

Runs in the environment of the rivals and imports nothing of jzero. Reads a line, runs
one update, prints the seconds that it took; see `host_adam.py`.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam


def make(name: str, num_params: int) -> Any:
    param = torch.nn.Parameter(torch.zeros(num_params))
    param.grad = torch.full((num_params,), 1e-3)
    if name == "torch":
        return torch.optim.AdamW([param], lr=1e-3, fused=True)
    return DeepSpeedCPUAdam([param], lr=1e-3)


def main(name: str, num_params: str, num_threads: str) -> None:
    torch.set_num_threads(int(num_threads))
    optimizer = make(name, int(num_params))
    for _ in range(2):
        optimizer.step()
    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        optimizer.step()
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
