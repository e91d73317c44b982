"""jzero beside DeepSpeed ZeRO and torch FSDP2: one model, data and machine."""
