"""LLVM text to machine code for the processor at hand, by llvmlite.

Lives here: all that is known of llvmlite, which is an extra: `jzero[host-kernels]`. It
brings LLVM and no compiler has to be installed. May import: errors. Read next:
`ffi.py`, which makes the code an operation of a program.
"""

from __future__ import annotations

import importlib
import threading
from functools import cache
from typing import Any

from jzero.errors import ConfigError

__all__ = ["compile_text", "load_llvm"]

# Two steps may be traced at once, and a name may be given once only.
_ONE_AT_A_TIME = threading.Lock()


def load_llvm() -> Any:
    """Returns llvmlite's binding to LLVM.

    Raises:
        ConfigError: llvmlite is not installed.
    """
    try:
        binding = importlib.import_module("llvmlite.binding")
    except ModuleNotFoundError as error:
        raise ConfigError(
            'Offload(compiler="llvm") needs llvmlite.\n'
            'Remedy: pip install "jzero[host-kernels]"'
        ) from error
    return binding


@cache
def _machine() -> Any:
    """The processor at hand, and how code for it is optimized."""
    llvm = load_llvm()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        jit=True,
    )


@cache
def _engine() -> Any:
    """Holds the machine code of all modules for the rest of the process."""
    llvm = load_llvm()
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())


def compile_text(text: str, name: str) -> int:
    """Compiles LLVM text, once for each text.

    Args:
        text: One module.
        name: Of a function in it, which no other text may define.

    Returns:
        The address of the function, for the rest of the process.

    Raises:
        ConfigError: llvmlite is not installed.

    Example:
        >>> import ctypes
        >>> address = compile_text(
        ...     "define i32 @add_one(i32 %x) { %y = add i32 %x, 1 ret i32 %y }",
        ...     "add_one",
        ... )
        >>> ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32)(address)(41)
        42
    """
    with _ONE_AT_A_TIME:
        return _compile(text, name)


@cache
def _compile(text: str, name: str) -> int:
    llvm = load_llvm()
    module = llvm.parse_assembly(text)
    module.triple = llvm.get_process_triple()
    machine = _machine()
    module.data_layout = str(machine.target_data)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    engine = _engine()
    engine.add_module(module)
    engine.finalize_object()
    return engine.get_function_address(name)
