"""Training in float16: `jzero.precision`."""

from jzero.precision.loss_scale import DynamicLossScale, all_finite

__all__ = ["DynamicLossScale", "all_finite"]
