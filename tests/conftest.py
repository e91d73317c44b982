"""The world that every test runs in: 8 virtual CPU devices, strict settings.

What must be decided before JAX is imported is decided here, for the tests, for
the examples in docstrings, and for the processes that tests start.
"""

from __future__ import annotations

import os

FLAGS = (
    "--xla_force_host_platform_device_count=8",
    # Needs the GPU that the checks of compiled programs do without.
    "--xla_gpu_autotune_level=0",
    # Half of a compilation for GPUs goes into Triton's matmuls, which have no part in
    # what is checked. The benchmarks compile as users do.
    "--xla_gpu_enable_triton_gemm=false",
)
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *FLAGS]).strip()
os.environ["JAX_PLATFORMS"] = "cpu"
# With the GPU compiler installed, its plugin would look for a driver.
os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"

# XLA for CPUs runs programs and their collectives on as many threads as there are
# cores. Eight devices that wait for each other on two threads can wait for ever.
os.environ.setdefault("PJRT_NPROC", "16")

import jax  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

# Jzero must not lean on arrays of different ranks meeting silently.
jax.config.update("jax_numpy_rank_promotion", "raise")

# JAX 0.10.2 can stall when many eight-device programs are queued on few cores: a
# participant never reaches its collective. One program at a time does not.
jax.config.update("jax_cpu_enable_async_dispatch", False)

# Compiling takes most of the suite's time, and most of that is LLVM's, which works
# far less without optimizations; what XLA does to a program stays the same. Examples
# and the jobs of several processes are compiled as users' programs are.
jax.config.update("jax_disable_most_optimizations", True)

# The same examples every time; no deadline, since compilation dominates.
settings.register_profile(
    "suite",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("suite")
