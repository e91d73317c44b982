"""Training in float16: `jzero.precision`."""

from jzero.precision.loss_scale import DynamicLossScale, LossScaleError, all_finite

__all__ = ["DynamicLossScale", "LossScaleError", "all_finite"]
