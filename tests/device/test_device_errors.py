"""What stands in the way of a measurement on a real GPU is one clear sentence."""

import os
import subprocess
import sys

import pytest
from device_cases import buffers_of

from c3lib.cuda.device import open_device
from c3lib.cuda.gemm import Operands
from c3lib.errors import C3Error
from c3lib.files import ROOT
from c3lib.workload import Gemm

pytestmark = pytest.mark.device

OPEN = """
from c3lib.cuda.device import open_device
from c3lib.errors import C3Error
try:
    open_device()
    print("opened")
except C3Error as error:
    print("C3Error:", error, flush=True)
"""

LOSE = """
import numpy as np
from c3lib.cuda.device import open_device
from c3lib.cuda.region import Gate, timed
from c3lib.cuda.source import launch
from c3lib.cuda.streams import new_stream
from c3lib.errors import C3Error
cuda = open_device()
room = cuda.torch.empty(4096, dtype=cuda.torch.uint8, device="cuda")
fill = lambda address: lambda on: launch(cuda, on[0], "fill", 1, 32, np.uint64(address), np.uint64(4096), np.uint64(1))
stream = new_stream(cuda)
fill(room.data_ptr())([stream])
stream.sync()
try:
    timed(Gate([cuda]), ([stream], fill(64)), None)
    print("nothing happened")
except C3Error as error:
    print("C3Error:", error, flush=True)
"""


def said(script: str, **environment: str) -> str:
    """What a Python of its own prints."""
    result = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=50,
    )
    return result.stdout.strip() or result.stderr


def test_too_large_a_plan(cuda):
    """GPU memory is asked for first, so the machine's own memory is left alone."""
    with pytest.raises(C3Error, match=r"^cuda: not enough memory while allocating the buffers of all-gather") as caught:
        buffers_of(cuda, 1 << 40, 2)
    assert "\n" not in str(caught.value)


def test_too_large_a_gemm(cuda):
    with pytest.raises(C3Error, match=r"^cuda: not enough memory while allocating the operands of 1048576x") as caught:
        Operands(cuda, Gemm(1 << 20, 1 << 10, 1 << 20))
    assert "\n" not in str(caught.value)


def test_a_dtype_that_cannot_be_measured(cuda):
    with pytest.raises(C3Error, match=r"dtype fp8 cannot be measured here; known: bf16, fp16, fp32"):
        Operands(cuda, Gemm(64, 64, 64, "fp8"))


def test_a_gpu_that_is_not_there(cuda):
    with pytest.raises(C3Error, match=r"100 GPUs are needed, this machine has \d+"):
        open_device.__wrapped__(99)


def test_a_busy_gpu(cuda):
    torch = cuda.torch
    taken = torch.empty(cuda.memory_nbytes // 12, dtype=torch.uint8, device="cuda")
    with pytest.raises(C3Error, match=r"GPU 0 is in use, \d+\.\d of \d+ GB are taken by another program"):
        open_device.__wrapped__(0)
    del taken
    torch.cuda.empty_cache()


def test_no_gpu():
    assert said(OPEN, CUDA_VISIBLE_DEVICES="") == (
        "C3Error: backend cuda: no NVIDIA GPU here, or no driver for it (nvidia-smi shows neither)"
    )


def test_a_device_lost_in_mid_run(cuda):
    """A kernel that writes where nothing is: the context is lost, as by a fault of the hardware."""
    cuda.torch.cuda.empty_cache()
    text = said(LOSE)
    assert text.startswith("C3Error: cuda: the device failed while running gemm: "), text
    assert "\n" not in text
