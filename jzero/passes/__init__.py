"""Passes: small rewrites of a traced step, one file each.

    spread_batch.py   a scan over micro-batches keeps every device busy
    reduce.py         gradients are reduce-scattered where they are born
    gather.py         weights are gathered where they are used
    window.py         at most so many bytes of whole gradients wait at a time
    pipeline.py       the order, and switching a pass off by name

Every pass is `(TracedStep, Plan) -> TracedStep` with its settings bound when it
is made; passes do not know each other. All keep the numbers: they insert
sharding constraints and barriers, nothing else. May import: ir, plan, compat.
"""
