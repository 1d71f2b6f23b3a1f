"""What is already measured on H200s beside what the model gives there: where it agrees, and by how much it does not."""

import numpy as np
import pytest
from model_cases import H200, NODES

from c3lib.model import kernels
from c3lib.model.contention import predict
from c3lib.strategy import strategy
from c3lib.workload import Collective, Gemm, Scenario

COMPUTE_BOUND = Gemm(8192, 8192, 8192)
MEMORY_BOUND = Gemm(16, 28672, 8192)


@pytest.mark.parametrize(
    ("blocks", "measured_gbs", "tolerance"),
    [
        (1, 97, 0.05),
        (2, 193, 0.05),
        (4, 385, 0.05),
        (8, 765, 0.05),
        (16, 1494, 0.05),
        (32, 2904, 0.05),
        (64, 3466, 0.22),
    ],
)
def test_copy_kernel_of_one_h200(blocks, measured_gbs, tolerance):
    """Read plus write by thread blocks, within 5 % while it scales.

    At 64 the model is already at the 4.2 TB/s of a whole-device copy; the measured kernel bends before that.
    """
    assert kernels.gemm_memory_gbs(blocks, H200) == pytest.approx(measured_gbs, rel=tolerance)


def test_full_device_copy_of_one_h200():
    """4.2 TB/s read plus write."""
    assert H200.gpu.hbm_gbs == pytest.approx(4200)


@pytest.mark.parametrize(
    ("node", "gemm", "low", "high", "tolerance"),
    [
        ("h200_1", COMPUTE_BOUND, 1.00, 1.02, 0.0),
        ("h200_1", MEMORY_BOUND, 1.04, 1.06, 0.02),
        ("h200_2", COMPUTE_BOUND, 1.05, 1.05, 0.01),
        ("h200_2", MEMORY_BOUND, 1.12, 1.12, 0.10),
    ],
)
def test_slowdown_beside_copy_engine_traffic(node, gemm, low, high, tolerance):
    """A GEMM that ends while the copy engines still move bytes. The third row set ``memory_queueing`` there.

    Beside NVLink traffic a memory-bound GEMM loses about half of what fair sharing takes from it: a miss that the
    model card names.
    """
    machine = NODES[node]
    pair = Scenario("x", gemm, Collective("all-gather", 2**36, machine.ranks))
    result = predict(*kernels.batch([pair], machine), machine, strategy("conccl"))
    assert np.all(result.collective_end_s > 2 * result.gemm_end_s)
    slowdown = float(result.gemm_end_s[0] / result.gemm_alone_s[0])
    assert low - tolerance <= slowdown <= high + tolerance
