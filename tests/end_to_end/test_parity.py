"""The table of models and regimes, in their users' spellings, at every stage."""

from __future__ import annotations

import jax
import pytest

from tests.end_to_end.oracle import check_parity, mesh_of
from tests.models.architectures import ARCHITECTURES
from tests.models.case import Case
from tests.models.regimes import REGIMES
from tests.models.transformers import TRANSFORMERS

CASES: dict[str, Case] = {**ARCHITECTURES, **REGIMES, **TRANSFORMERS}

# Stage 2 gathers as stage 1 does and reduces as stage 3 does; the transformers
# meet each stage.
PAIRS = [(name, stage) for name in CASES for stage in (1, 3)]
PAIRS += [(name, 2) for name in TRANSFORMERS]
PAIRS += [(name, 0) for name in ("scanned", "top_1_experts", "teacher")]


def check(name: str, stage: int, num_devices: int = 8) -> None:
    case = CASES[name]
    with jax.enable_x64(True):
        check_parity(
            case.step,
            case.make(),
            case.data,
            case.new_state,
            stage=stage,
            mesh=mesh_of(num_devices),
            **dict(case.settings),
        )


@pytest.mark.parametrize(("name", "stage"), PAIRS)
def test_parity_in_double_precision(name: str, stage: int) -> None:
    check(name, stage)


@pytest.mark.parametrize("num_devices", (1, 2, 4))
@pytest.mark.parametrize("name", ("scanned_remat_tied", "adversaries"))
def test_other_device_counts(name: str, num_devices: int) -> None:
    check(name, 3, num_devices)
