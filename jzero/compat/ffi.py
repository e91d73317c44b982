"""XLA's foreign function interface: machine code as an operation of a program.

Lives here: all that is known of the binary interface (`xla/ffi/api/c_api.h`, which
jaxlib ships), written as LLVM text: a *handler* that XLA calls, which hands arrays to
a *kernel* `void (ptr slots, i64 begin, i64 end)` in runs of elements. May import: jax
alone. Read next: `llvm.py`, which turns the text into machine code.

The layout below is that of version 0.3 (jaxlib 0.10); later minor versions only
append. The handler answers with major version 0, so that XLA refuses it, and does
not crash, the day the layout changes.
"""

from __future__ import annotations

import ctypes
import os
from string import Template

import jax

__all__ = ["handler_text", "register_handler"]

# Elements that one thread takes at a time: enough that taking is cheap, few enough
# that threads end at nearly the same time.
_RUN_ELEMS = 2**15

_HANDLER = Template("""
%Extension = type { i64, i32, ptr }
%Version = type { i64, ptr, i32, i32 }
%Metadata = type { i64, %Version, i32, i64 }
%MetadataExtension = type { %Extension, ptr }
%Operands = type { i64, ptr, i64, ptr, ptr }
%Frame = type { i64, ptr, ptr, ptr, i32, %Operands, %Operands }
%Buffer = type { i64, ptr, i32, ptr, i64, ptr }
%Api = type { i64, ptr, %Version, ptr, [13 x ptr] }
%ScheduleArgs = type { i64, ptr, ptr, ptr, ptr }
%CountArgs = type { i64, ptr, ptr, ptr }
%DestroyArgs = type { i64, ptr, ptr }
%Slots = type [$num_slots x ptr]
; next run, runs that are done, who still holds it, number of runs, of elements
%Job = type { i64, i64, i64, i64, i64, %Slots }

declare noalias ptr @malloc(i64)
declare void @free(ptr)
declare i32 @$yield_processor()

define ptr @$name(ptr %frame) {
entry:
  %extension_at = getelementptr %Frame, ptr %frame, i32 0, i32 1
  %extension = load ptr, ptr %extension_at
  %api_at = getelementptr %Frame, ptr %frame, i32 0, i32 2
  %api = load ptr, ptr %api_at
  %is_call = icmp eq ptr %extension, null
  br i1 %is_call, label %call, label %ask
ask:
  %kind_at = getelementptr %Extension, ptr %extension, i32 0, i32 1
  %kind = load i32, ptr %kind_at
  %is_metadata = icmp eq i32 %kind, 1
  br i1 %is_metadata, label %tell, label %call
tell:
  %minor_at = getelementptr %Api, ptr %api, i32 0, i32 2, i32 3
  %minor = load i32, ptr %minor_at
  %metadata_at = getelementptr %MetadataExtension, ptr %extension, i32 0, i32 1
  %metadata = load ptr, ptr %metadata_at
  %version = getelementptr %Metadata, ptr %metadata, i32 0, i32 1
  store %Version { i64 24, ptr null, i32 0, i32 0 }, ptr %version
  %told_at = getelementptr %Version, ptr %version, i32 0, i32 3
  store i32 %minor, ptr %told_at
  %traits_at = getelementptr %Metadata, ptr %metadata, i32 0, i32 2
  store i32 0, ptr %traits_at
  %state_at = getelementptr %Metadata, ptr %metadata, i32 0, i32 3
  store i64 0, ptr %state_at
  ret ptr null
call:
  %stack = alloca %Slots
  %args_at = getelementptr %Frame, ptr %frame, i32 0, i32 5, i32 4
  %args = load ptr, ptr %args_at
  %rets_at = getelementptr %Frame, ptr %frame, i32 0, i32 6, i32 4
  %rets = load ptr, ptr %rets_at
$fill_slots
  %counted_at = getelementptr ptr, ptr %args, i64 $counted
  %counted = load ptr, ptr %counted_at
  %rank_at = getelementptr %Buffer, ptr %counted, i32 0, i32 4
  %rank = load i64, ptr %rank_at
  %dims_at = getelementptr %Buffer, ptr %counted, i32 0, i32 5
  %dims = load ptr, ptr %dims_at
  br label %count
count:
  %dim = phi i64 [ 0, %call ], [ %next_dim, %multiply ]
  %num_elems = phi i64 [ 1, %call ], [ %product, %multiply ]
  %has_dim = icmp slt i64 %dim, %rank
  br i1 %has_dim, label %multiply, label %counted_all
multiply:
  %size_at = getelementptr i64, ptr %dims, i64 %dim
  %size = load i64, ptr %size_at
  %product = mul i64 %num_elems, %size
  %next_dim = add i64 %dim, 1
  br label %count
counted_all:
  %num_runs = call i64 @$name.runs(i64 %num_elems)
  %is_short = icmp sle i64 %num_runs, 1
  br i1 %is_short, label %alone, label %ask_threads
ask_threads:
  %context_at = getelementptr %Frame, ptr %frame, i32 0, i32 3
  %context = load ptr, ptr %context_at
  %num_threads_at = alloca i64
  store i64 1, ptr %num_threads_at
  %count_args = alloca %CountArgs
  store %CountArgs { i64 32, ptr null, ptr null, ptr null }, ptr %count_args
  %count_context_at = getelementptr %CountArgs, ptr %count_args, i32 0, i32 2
  store ptr %context, ptr %count_context_at
  %count_into_at = getelementptr %CountArgs, ptr %count_args, i32 0, i32 3
  store ptr %num_threads_at, ptr %count_into_at
  %count_threads_at = getelementptr %Api, ptr %api, i32 0, i32 4, i32 12
  %count_threads = load ptr, ptr %count_threads_at
  %count_error = call ptr %count_threads(ptr %count_args)
  call void @$name.forget(ptr %api, ptr %count_error)
  %num_threads = load i64, ptr %num_threads_at
  %has_no_pool = icmp ne ptr %count_error, null
  %has_one = icmp sle i64 %num_threads, 1
  %is_alone = or i1 %has_no_pool, %has_one
  br i1 %is_alone, label %alone, label %share
alone:
  call void @$kernel(ptr %stack, i64 0, i64 %num_elems)
  ret ptr null
share:
  %job_end = getelementptr %Job, ptr null, i32 1
  %job_bytes = ptrtoint ptr %job_end to i64
  %job = call ptr @malloc(i64 %job_bytes)
  %is_full = icmp eq ptr %job, null
  br i1 %is_full, label %alone, label %publish
publish:
  %most = call i64 @llvm.smin.i64(i64 %num_threads, i64 %num_runs)
  %next_at = getelementptr %Job, ptr %job, i32 0, i32 0
  store i64 0, ptr %next_at
  %done_at = getelementptr %Job, ptr %job, i32 0, i32 1
  store i64 0, ptr %done_at
  %holders_at = getelementptr %Job, ptr %job, i32 0, i32 2
  store i64 %most, ptr %holders_at
  %runs_at = getelementptr %Job, ptr %job, i32 0, i32 3
  store i64 %num_runs, ptr %runs_at
  %elems_at = getelementptr %Job, ptr %job, i32 0, i32 4
  store i64 %num_elems, ptr %elems_at
  %slots_at = getelementptr %Job, ptr %job, i32 0, i32 5
  %slots = load %Slots, ptr %stack
  store %Slots %slots, ptr %slots_at
  %schedule_args = alloca %ScheduleArgs
  store %ScheduleArgs { i64 40, ptr null, ptr null, ptr @$name.task, ptr null },
    ptr %schedule_args
  %schedule_context_at = getelementptr %ScheduleArgs, ptr %schedule_args, i32 0, i32 2
  store ptr %context, ptr %schedule_context_at
  %schedule_data_at = getelementptr %ScheduleArgs, ptr %schedule_args, i32 0, i32 4
  store ptr %job, ptr %schedule_data_at
  %schedule_at = getelementptr %Api, ptr %api, i32 0, i32 4, i32 11
  %schedule = load ptr, ptr %schedule_at
  br label %ask_helper
ask_helper:
  %helper = phi i64 [ 1, %publish ], [ %next_helper, %asked_helper ]
  %is_wanted = icmp slt i64 %helper, %most
  br i1 %is_wanted, label %schedule_helper, label %take_part
schedule_helper:
  %schedule_error = call ptr %schedule(ptr %schedule_args)
  %is_scheduled = icmp eq ptr %schedule_error, null
  br i1 %is_scheduled, label %asked_helper, label %lost_helper
lost_helper:
  call void @$name.forget(ptr %api, ptr %schedule_error)
  call void @$name.release(ptr %job)
  br label %asked_helper
asked_helper:
  %next_helper = add i64 %helper, 1
  br label %ask_helper
take_part:
  call void @$name.drain(ptr %job)
  br label %wait
wait:
  ; Every run is taken by a thread that is at work on it: none waits for the pool.
  %num_done = load atomic i64, ptr %done_at acquire, align 8
  %is_done = icmp eq i64 %num_done, %num_runs
  br i1 %is_done, label %finished, label %wait_on
wait_on:
  %yielded = call i32 @$yield_processor()
  br label %wait
finished:
  call void @$name.release(ptr %job)
  ret ptr null
}

define internal i64 @$name.runs(i64 %num_elems) {
  %more = add i64 %num_elems, ${last_of_run}
  %num_runs = udiv i64 %more, $run_elems
  ret i64 %num_runs
}

define internal void @$name.forget(ptr %api, ptr %error) {
  %is_none = icmp eq ptr %error, null
  br i1 %is_none, label %finished, label %destroy
destroy:
  %args = alloca %DestroyArgs
  store %DestroyArgs { i64 24, ptr null, ptr null }, ptr %args
  %error_at = getelementptr %DestroyArgs, ptr %args, i32 0, i32 2
  store ptr %error, ptr %error_at
  %destroy_at = getelementptr %Api, ptr %api, i32 0, i32 4, i32 2
  %destroy_error = load ptr, ptr %destroy_at
  call void %destroy_error(ptr %args)
  br label %finished
finished:
  ret void
}

define internal void @$name.task(ptr %job) {
  call void @$name.drain(ptr %job)
  call void @$name.release(ptr %job)
  ret void
}

define internal void @$name.drain(ptr %job) {
entry:
  %next_at = getelementptr %Job, ptr %job, i32 0, i32 0
  %done_at = getelementptr %Job, ptr %job, i32 0, i32 1
  %runs_at = getelementptr %Job, ptr %job, i32 0, i32 3
  %num_runs = load i64, ptr %runs_at
  %elems_at = getelementptr %Job, ptr %job, i32 0, i32 4
  %num_elems = load i64, ptr %elems_at
  %slots = getelementptr %Job, ptr %job, i32 0, i32 5
  br label %take
take:
  %run = atomicrmw add ptr %next_at, i64 1 monotonic
  %is_left = icmp slt i64 %run, %num_runs
  br i1 %is_left, label %work, label %finished
work:
  %begin = mul i64 %run, $run_elems
  %full_end = add i64 %begin, $run_elems
  %end = call i64 @llvm.smin.i64(i64 %full_end, i64 %num_elems)
  call void @$kernel(ptr %slots, i64 %begin, i64 %end)
  %was_done = atomicrmw add ptr %done_at, i64 1 release
  br label %take
finished:
  ret void
}

define internal void @$name.release(ptr %job) {
  %holders_at = getelementptr %Job, ptr %job, i32 0, i32 2
  %holders = atomicrmw sub ptr %holders_at, i64 1 acq_rel
  %is_last = icmp eq i64 %holders, 1
  br i1 %is_last, label %drop, label %finished
drop:
  call void @free(ptr %job)
  br label %finished
finished:
  ret void
}

declare i64 @llvm.smin.i64(i64, i64)
""")
_FILL_SLOT = Template("""
  %buffer_at$slot = getelementptr ptr, ptr $side, i64 $position
  %buffer$slot = load ptr, ptr %buffer_at$slot
  %data_at$slot = getelementptr %Buffer, ptr %buffer$slot, i32 0, i32 3
  %data$slot = load ptr, ptr %data_at$slot
  %slot_at$slot = getelementptr ptr, ptr %stack, i64 $slot
  store ptr %data$slot, ptr %slot_at$slot""")


def handler_text(
    name: str, kernel: str, *, num_inputs: int, num_results: int, counted: int
) -> str:
    """Writes a handler that runs a kernel over the elements of its arrays.

    Large arrays are worked on by all threads of XLA's own pool. Runs of elements are
    taken from a counter by whoever is there, the caller among them, so that a pool
    without a free thread makes it slower and not stuck.

    Args:
        name: Of the handler, a valid LLVM name.
        kernel: Name of the kernel, which the text is put together with. Its slots are
            the addresses of the inputs, then of the results.
        num_inputs: Number of arrays it reads.
        num_results: Number of arrays it writes.
        counted: Number of the input whose elements are counted.

    Returns:
        LLVM text.
    """
    sides = [("%args", i) for i in range(num_inputs)]
    sides += [("%rets", i) for i in range(num_results)]
    fill = "".join(
        _FILL_SLOT.substitute(slot=slot, side=side, position=position)
        for slot, (side, position) in enumerate(sides)
    )
    return _HANDLER.substitute(
        name=name,
        kernel=kernel,
        num_slots=len(sides),
        fill_slots=fill,
        counted=counted,
        run_elems=_RUN_ELEMS,
        last_of_run=_RUN_ELEMS - 1,
        yield_processor="SwitchToThread" if os.name == "nt" else "sched_yield",
    )


def register_handler(name: str, address: int) -> None:
    """Makes a handler known to XLA:CPU, for the rest of the process.

    Args:
        name: Under which programs call it.
        address: Of its machine code, which must stay where it is.
    """
    pointer = ctypes.c_void_p(address)
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(pointer), platform="cpu")
