"""``c3 trace analyze`` on traces by hand whose answers are known, and on those of torch.profiler itself."""

import json
import re
from pathlib import Path

import pytest
from trace_cases import ADD, CIJK, CUTLASS, GATHER, GEMM, HOST, PEER, RCCL, SENT, copy, kernel, operator, write
from typer.testing import CliRunner

from c3lib.cli import app
from c3lib.errors import C3Error
from c3lib.hardware import load_node
from c3lib.trace import names
from c3lib.trace.advice import advise_overlaps, pair
from c3lib.trace.analysis import MOST_TRANSFERS, Stream, analyze
from c3lib.trace.kernel import Kernel, Launch, Sent, Shape
from c3lib.trace.names import kind, role
from c3lib.trace.record import record
from c3lib.workload import Collective, Gemm

US = 1e-6
MM = [[4096, 8192], [8192, 2048]]
BF16 = ["c10::BFloat16"] * 2


def invoke(*words):
    return CliRunner().invoke(app, ["trace", "analyze", *map(str, words)])


@pytest.fixture
def trace(tmp_path):
    """Analyses these events; the first GPU of the answer."""
    return lambda *events, **about: analyze([write(tmp_path / "t.json", list(events), **about)])[0]


def record_of(trace, *events):
    """The record that the analysis of these events begins with."""
    return record(Path(trace(*events).file))


def us(value):
    return pytest.approx(value * US, abs=1e-15)


# --- names ---


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (GEMM, names.GEMM),
        (CUTLASS, names.GEMM),
        (CIJK, names.GEMM),
        ("ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn", names.GEMM),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", names.GEMM),
        (
            "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>(Params)",
            names.GEMM,
        ),
        ("void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>(cublasGemv)", names.GEMM),
        ("triton_tem_fused_mm_3", names.GEMM),
        ("triton_mm", names.GEMM),
        ("_matmul_kernel", names.GEMM),
        ("void ck::kernel_gemm_xdl_cshuffle_v3<ck::GridwiseGemm<float> >(Argument)", names.GEMM),
        ("wvSplitK_hf_sml_", names.GEMM),
        ("triton_poi_fused_addmm_relu_0", names.KERNEL),
        ("void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<Mainloop> > >(Params)", names.KERNEL),
        ("void pytorch_flash::flash_fwd_kernel<Traits<128, cutlass::half_t> >(Params)", names.KERNEL),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::Params)", names.KERNEL),
        ("sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc", names.KERNEL),
        ("void splitKreduce_kernel<32, 16, int, float>(cublasSplitKParams<float>)", names.KERNEL),
        ("void vllm::rms_norm_kernel<cutlass::bfloat16_t>(int)", names.KERNEL),
        (ADD, names.KERNEL),
        ("", names.KERNEL),
        (GATHER, names.COLLECTIVE),
        (RCCL, names.COLLECTIVE),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", names.COLLECTIVE),
        ("ncclSymkDevKernel_AllGather_LL(ncclSymkDevWorkArgs)", names.COLLECTIVE),
        ("mscclKernel_Sum_half_LL_Simple", names.COLLECTIVE),
        ("void aiter::cross_device_reduce_2stage<__half, 8, false>(RankData*)", names.COLLECTIVE),
        ("void multimem_one_shot_all_reduce_kernel<float>(float*)", names.COLLECTIVE),
    ],
)
def test_role_of_a_kernel(name, expected):
    assert role("kernel", name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (PEER, names.PEER_COPY),
        (HOST, names.HOST_COPY),
        ("Memcpy DtoH (Device -> Pageable)", names.HOST_COPY),
        ("Memcpy DtoD (Device -> Device)", names.LOCAL_COPY),
        ("CopyDeviceToDevice", names.LOCAL_COPY),
        ("CopyHostToDevice", names.HOST_COPY),
        ("Memcpy ? (? -> ?)", names.LOCAL_COPY),
    ],
)
def test_role_of_a_copy(name, expected):
    assert role("memcpy", name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (GATHER, "all-gather"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(args)", "reduce-scatter"),
        ("ncclDevKernel_AllReduce_Sum_f32_TREE_LL(args)", "all-reduce"),
        ("ncclDevKernel_SendRecv(args)", "send-recv"),
        ("ncclDevKernel_Broadcast_RING_LL(args)", "broadcast"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL(args)", "reduce"),
        (RCCL, ""),
        ("_allgather_base", "all-gather"),
        ("all_gather_into_tensor_coalesced", "all-gather"),
        ("reduce_scatter_tensor_coalesced", "reduce-scatter"),
        ("all_to_allv", "all-to-all"),
        ("alltoall_base", "all-to-all"),
        ("all-to-all", "all-to-all"),
        ("allreduce", "all-reduce"),
        ("recv 1->0", "send-recv"),
        ("gather", "gather"),
    ],
)
def test_kind_of_a_collective(name, expected):
    assert kind(name) == expected


def test_bytes_are_counted_as_everywhere_here():
    assert Sent.of(SENT) == ("all-gather", 8192 * 2, 8)  # the gathered output
    assert Sent.of({**SENT, "Collective name": "all_to_all"}) == ("all-to-all", 1024 * 2, 8)  # what one rank sends
    assert Sent.of({**SENT, "dtype": "Complex"}) == ("all-gather", 0, 8)
    assert Sent.of({"Collective name": ["allgather"]}) is Sent.of({}) is None


@pytest.mark.parametrize(
    ("name", "dims", "expected"),
    [
        ("aten::mm", MM, (4096, 2048, 8192, 1, "bf16")),
        ("aten::addmm", [[2048], *MM, [], []], (4096, 2048, 8192, 1, "bf16")),
        ("aten::linear", [[2, 512, 8192], [2048, 8192], []], (1024, 2048, 8192, 1, "bf16")),
        ("aten::bmm", [[16, 64, 128], [16, 128, 32]], (64, 32, 128, 16, "bf16")),
        ("aten::mm", [[4096, 8192], [4096, 2048]], None),  # do not fit
        ("aten::mm", [[4096, 0], [0, 2048]], None),
        ("aten::mm", [[4096, 8192]], None),
        ("aten::mm", ["x", {}], None),
        ("aten::mm", [[4096, -8192], [-8192, 2048]], None),
        ("aten::bmm", [[128], [16, 128, 32]], None),
        ("aten::bmm", [[64, 128], [16, 128, 32]], None),
        ("aten::linear", [[2**50, 2**50, 8192], [2048, 8192]], None),
    ],
)
def test_shape_of_a_gemm(name, dims, expected):
    assert Shape.of(name, {"Input Dims": dims, "Input type": ["c10::BFloat16"] * 5}) == expected


def test_what_is_told_of_a_kernel_goes_where_it_belongs():
    gemm, gather = Kernel(names.GEMM, "g", (1,)), Kernel(names.COLLECTIVE, "c", nbytes=7)
    launch, shape, sent = Launch((4,), (256,)), Shape(8, 2, 4, 1, "bf16"), Sent("all-gather", 64, 8)
    assert launch.on(gemm) == Kernel(names.GEMM, "g", (1,), (256,))  # its own grid stands
    assert shape.on(gemm) == Kernel(names.GEMM, "g", (1,), shape=shape)
    assert shape.on(gather) == gather
    assert sent.on(gemm) == gemm
    assert sent.on(Kernel(names.HOST_COPY, "h")) == Kernel(names.HOST_COPY, "h")
    assert sent.on(gather) == Kernel(names.COLLECTIVE, "c", collective="all-gather", nbytes=64, ranks=8)
    copied = Sent("all-to-all", 0, 8).on(Kernel(names.PEER_COPY, "p", nbytes=7))
    assert copied == Kernel(names.COLLECTIVE, "p", collective="all-to-all", nbytes=7, ranks=8)
    named = Sent(names.COLLECTIVE, 0, 8).on(Kernel(names.COLLECTIVE, "r", collective="all-reduce"))
    assert (named.collective, named.nbytes) == ("all-reduce", 0)


# --- known answers ---


def test_exposed_overlapped_and_slowdown_of_a_trace_by_hand(trace):
    """On GPU 0, in microseconds: a GEMM alone for 100, then one of 150 beside a collective of 80 that starts 100 after
    it, so that 30 are exposed until an elementwise kernel hides 20 of them."""
    found = trace(
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}},
        kernel(GEMM, 1000, 100),
        kernel(GEMM, 2000, 150),
        kernel(GATHER, 2100, 80, stream=13, **SENT),
        kernel(ADD, 2160, 40),
        kernel(GATHER, 3000, 60, stream=13, **SENT),
        {"ph": "X", "cat": "gpu_user_annotation", "name": GEMM, "pid": 0, "tid": 7, "ts": 0, "dur": 9000},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9, "ts": 1, "dur": 2},
        deviceProperties=[{"id": 0, "name": "NVIDIA H200"}, {"id": "x"}, 3],
    )
    assert (found.device, found.title, found.activities) == (0, "NVIDIA H200", 5)
    assert found.streams == (Stream("7", 3, us(290), us(250), 0), Stream("13", 2, us(140), 0, us(140)))
    assert (found.evidence, found.complete) == ("recorded by a profiler", True)
    assert found.span_s == us(2060)
    assert found.busy_s == us(100 + 200 + 60)
    assert (found.gemm_s, found.compute_s) == (us(250), us(290))
    hidden = found.communication
    assert (hidden.time_s, hidden.beside_gemms_s) == (us(140), us(50))
    assert (hidden.exposed_s, hidden.overlapped_s) == (us(10 + 60), us(70))
    (overlap,) = found.overlaps
    assert (overlap.runs, overlap.gemm.name, overlap.transfer.collective) == (1, GEMM, "all-gather")
    assert (overlap.gemm_s, overlap.gemm_alone_s, overlap.gemm_alone_runs) == (us(150), us(100), 1)
    assert overlap.gemm_slowdown == pytest.approx(1.5)
    assert overlap.transfer_slowdown == pytest.approx(80 / 60)
    assert (overlap.overlapped_s, overlap.lost_s) == (us(50), us(50))


def test_two_collectives_at_once_count_once(trace):
    found = trace(
        kernel(GATHER, 0, 100, stream=13),
        kernel(GATHER, 50, 100, stream=14),
        kernel(GEMM, 120, 50),
        kernel(GEMM, 500, 1),
    )
    assert found.communication.time_s == us(150)
    assert found.communication.exposed_s == us(120)
    assert found.overlaps[0].overlapped_s == us(30)


def test_nested_intervals(trace):
    found = trace(kernel(GATHER, 0, 1000, stream=13), kernel(GEMM, 100, 100), kernel(ADD, 120, 10, stream=8))
    assert found.communication.exposed_s == us(900)
    assert found.communication.beside_gemms_s == us(100)
    assert found.busy_s == found.span_s == us(1000)


def test_back_to_back_is_no_overlap(trace):
    found = trace(kernel(GEMM, 0, 100), kernel(GATHER, 100, 50, stream=13), kernel(GEMM, 150, 100))
    assert found.overlaps == ()
    assert found.communication.exposed_s == found.communication.time_s == us(50)


def test_the_same_times_are_wholly_overlapped(trace):
    found = trace(kernel(GEMM, 5.5, 100.25), kernel(GATHER, 5.5, 100.25, stream=13))
    assert found.communication.overlapped_s == found.communication.time_s == us(100.25)
    assert found.communication.exposed_s == 0


def test_an_activity_that_takes_no_time_hides_nothing_and_is_never_alone(trace):
    found = trace(kernel(GATHER, 0, 100, stream=13), kernel(GEMM, 50, 0), kernel(GEMM, 200, 0))
    assert found.overlaps == ()
    assert (found.communication.exposed_s, found.gemm_s) == (us(100), 0)


def test_alone_is_with_nothing_else_on_the_gpu_and_of_the_same_launch_sizes(trace):
    events = [
        kernel(GEMM, 0, 200),
        kernel(GATHER, 0, 100, stream=13),
        kernel(GEMM, 1000, 300),  # beside an elementwise kernel
        kernel(ADD, 1050, 10, stream=8),
        kernel(GEMM, 2000, 10, grid=(64, 1, 1)),  # another launch size
        kernel(GEMM, 0, 10, device=1),  # another GPU
    ]
    (overlap,) = trace(*events).overlaps
    assert (overlap.gemm_alone_runs, overlap.transfer_alone_runs) == (0, 0)
    assert str(overlap.lost_s) == str(overlap.gemm_slowdown) == str(overlap.transfer_slowdown) == "nan"
    (overlap,) = trace(*events, kernel(GEMM, 3000, 90), kernel(GEMM, 4000, 110), kernel(GEMM, 5000, 100)).overlaps
    assert (overlap.gemm_alone_s, overlap.gemm_alone_runs, overlap.lost_s) == (us(100), 3, us(100))


def test_shapes_tell_gemms_of_one_kernel_apart(trace):
    """By the operator's External id on the kernel, or on the launch that has the kernel's correlation."""
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1, "dur": 1}
    (overlap,) = trace(
        operator("aten::mm", 5, MM, BF16),
        operator("aten::mm", 6, [[64, 8192], [8192, 2048]], BF16),
        operator("aten::add", 8, MM, BF16),
        launch | {"args": {"External id": 5, "correlation": 77}},
        kernel(GEMM, 0, 100, **{"External id": 5}),
        kernel(GATHER, 0, 50, stream=13),
        kernel(GEMM, 200, 10, **{"External id": 6}),
        kernel(GEMM, 400, 80, correlation=77),
    ).overlaps
    assert overlap.gemm.shape == (4096, 2048, 8192, 1, "bf16")
    assert (overlap.gemm_alone_s, overlap.gemm_alone_runs) == (us(80), 1)


def test_a_run_counts_for_the_transfer_that_runs_beside_it_longest(trace):
    reduce = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(args)"
    found = trace(
        kernel(GEMM, 0, 100), kernel(GATHER, 0, 30, stream=13), kernel(reduce, 30, 70, stream=13),
        kernel(GEMM, 1000, 110), kernel(GATHER, 1000, 60, stream=13), kernel(reduce, 1060, 50, stream=13),
        kernel(GEMM, 2000, 50),
    )  # fmt: skip
    rows = [(row.transfer.collective, row.runs, row.lost_s) for row in found.overlaps]
    assert rows == [("all-gather", 1, us(60)), ("reduce-scatter", 1, us(50))]


def test_of_very_many_transfers_the_longest_are_told_apart_and_all_are_counted(trace):
    many = [kernel(GATHER, 10 * i, 5 + i / 100, stream=13, grid=(i + 1, 1, 1)) for i in range(MOST_TRANSFERS + 5)]
    found = trace(*many, *(kernel(GEMM, 10 * i, 8) for i in range(MOST_TRANSFERS + 5)))
    assert len(found.overlaps) == MOST_TRANSFERS
    assert found.communication.exposed_s == 0


def test_peer_copies_are_communication_and_host_copies_have_their_own_table(trace, tmp_path):
    found = trace(
        kernel(GEMM, 0, 100),
        copy(PEER, 10, 40, nbytes=4096, inDevice=0, fromDevice=0, toDevice=1),
        copy(HOST, 60, 80, stream=21),
        copy("Memcpy DtoD (Device -> Device)", 200, 10),
        kernel(GEMM, 300, 80),
    )
    assert (found.communication.time_s, found.communication.exposed_s) == (us(40), 0)
    assert (found.host_copies.time_s, found.host_copies.exposed_s) == (us(80), us(40))
    assert found.busy_s == us(140 + 10 + 80)
    (overlap,) = found.overlaps  # both for 40 us: the first of them
    assert (overlap.transfer.role, overlap.transfer.nbytes) == ("host copy", 4096)
    text = invoke(tmp_path / "t.json").stdout
    assert "host copies" in text
    assert HOST in re.sub(r"\s+", " ", text)


def test_a_copy_from_one_gpu_to_another_is_a_peer_copy_whatever_its_name(trace):
    name = "Memcpy DtoD (Device -> Device)"
    found = trace(
        copy(name, 0, 10, fromDevice=0, inDevice=0, toDevice=1),
        copy(name, 50, 10, fromDevice=0, inDevice=0, toDevice=0),
    )
    assert found.communication.time_s == us(10)


def test_copies_that_a_collective_issued_are_the_collective(trace):
    """NCCL and RCCL by copy engines: copies linked to the operator of the collective."""
    found = trace(
        operator("record_param_comms", 3, **SENT),
        kernel(GEMM, 0, 100),
        copy(PEER, 0, 50, nbytes=99, **{"inDevice": 0, "External id": 3}),
        copy("Memcpy DtoD (Device -> Device)", 0, 20, stream=21, **{"device": 0, "External id": 3}),
    )
    assert found.communication.time_s == us(50)
    (overlap,) = found.overlaps
    assert overlap.transfer.role == names.COLLECTIVE
    assert (overlap.transfer.collective, overlap.transfer.nbytes, overlap.transfer.ranks) == ("all-gather", 16384, 8)


def test_rocm(trace):
    """Streams are queues, kernels have no launch sizes in old ones; the generic kernel is named by its arguments."""
    old = {"ph": "X", "cat": "kernel", "name": CIJK, "pid": 2, "tid": 1, "args": {"External id": 4}}
    found = trace(
        operator("aten::mm", 4, MM, BF16),
        old | {"ts": 10, "dur": 30},
        old | {"ts": 100, "dur": 20},
        {"ph": "X", "cat": "kernel", "name": RCCL, "pid": 2, "tid": 3, "ts": 20, "dur": 30, "args": dict(SENT)},
        {"ph": "X", "cat": "gpu_memcpy", "name": "CopyDeviceToHost", "pid": 2, "tid": 4, "ts": 200, "dur": 5},
    )
    assert (found.device, len(found.streams), found.host_copies.time_s) == (2, 3, us(5))
    (overlap,) = found.overlaps
    assert (overlap.gemm.shape, overlap.gemm.grid) == ((4096, 2048, 8192, 1, "bf16"), ())
    assert (overlap.transfer.collective, overlap.transfer.ranks) == ("all-gather", 8)
    assert (overlap.gemm_slowdown, overlap.overlapped_s) == (pytest.approx(1.5), us(20))


def test_rocm_whose_ids_are_those_of_launches(trace):
    """The launch lies in the operator's time on its thread and has the sizes; operator 25, of the same number as the
    first kernel, is another's."""

    def mm(external, ts, dims, tid=9):
        return operator("aten::mm", external, dims, BF16) | {"ts": ts, "dur": 10, "tid": tid}

    def launch(external, ts, grid=4, tid=9):
        args = {"External id": external, "stream": "0x0", "block dim": [256, 1, 1], "grid dim": [grid, 1, 1]}
        name = "hipExtModuleLaunchKernel"
        return {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 9, "tid": tid, "ts": ts, "dur": 2, "args": args}

    def run(external, ts, dur, name=CIJK, tid=0):
        args = {"External id": external}
        return {"ph": "X", "cat": "kernel", "name": name, "pid": 2, "tid": tid, "ts": ts, "dur": dur, "args": args}

    other = [[64, 8192], [8192, 64]]
    found = trace(
        operator("aten::linear", 511, [[1, 1], [1, 1]], BF16) | {"ts": 95, "dur": 60},
        mm(513, 100, MM), mm(514, 115, other), mm(25, 400, other), mm(515, 130, MM), mm(516, 0, other, tid=8),
        launch(25, 104), launch(26, 118), launch(27, 134), launch(28, 180), launch(29, 5, tid=8), launch(30, 11, tid=8),
        run(25, 1000, 30), run(26, 1100, 10), run(27, 1200, 20), run(28, 1300, 7), run(29, 1400, 7), run(30, 1500, 9),
        run(99, 1010, 10, RCCL, tid=3), run(31, 1700, 5, "Cijk_B_PostGSU2"),
    )  # fmt: skip
    (overlap,) = found.overlaps
    assert (overlap.gemm.shape, overlap.gemm.grid) == ((4096, 2048, 8192, 1, "bf16"), (4, 1, 1))
    assert (overlap.gemm_alone_s, overlap.gemm_alone_runs) == (us(20), 1)
    assert found.gemm_s == us(30 + 10 + 20 + 7 + 7 + 9)
    assert found.compute_s == us(30 + 10 + 20 + 7 + 7 + 9 + 5)


def test_rocm_whose_ids_are_those_of_launches_without_shapes(trace):
    """No operator is known then; launches still have the sizes."""
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "hipLaunchKernel", "tid": 9, "ts": 5, "dur": 1}
    found = trace(
        launch | {"args": {"External id": 25, "grid dim": [4, 1, 1], "block dim": [256, 1, 1]}},
        {"ph": "X", "cat": "kernel", "name": CIJK, "pid": 2, "tid": 1, "ts": 9, "dur": 3, "args": {"External id": 25}},
    )
    assert found.gemm_s == us(3)
    assert record(Path(found.file)).kernels == [Kernel(names.GEMM, CIJK, (4, 1, 1), (256, 1, 1))]


def test_the_operator_that_launched_is_the_innermost_in_time(trace):
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "hipLaunchKernel", "tid": 9, "dur": 1}
    kernels = [kernel(CIJK, 1000 * i, 10, **{"External id": i}) for i in (1, 2, 3)]
    found = record_of(
        trace,
        operator("aten::linear", 501, [[64, 128], [32, 128]], BF16) | {"ts": 10, "dur": 20},
        operator("aten::addmm", 502, [[32], [64, 128], [128, 32]], ["float"] * 3) | {"ts": 10, "dur": 10},
        *(launch | {"ts": ts, "args": {"External id": i}} for i, ts in ((1, 15), (2, 5), (3, 50))),
        *kernels,
    )
    assert [found.kernels[number].shape for number in found.kernel] == [(64, 32, 128, 1, "fp32"), None, None]


def test_categories_of_old_torch(trace):
    found = trace(kernel(GEMM, 0, 10) | {"cat": "Kernel"}, copy(HOST, 0, 10) | {"cat": "Memcpy"})
    assert (found.gemm_s, found.host_copies.time_s) == (us(10), us(10))


def test_devices_and_ranks_have_a_row_each(tmp_path):
    one = write(tmp_path / "rank0.json", [kernel(GEMM, 0, 10), kernel(GATHER, 5, 10, device=1)])
    two = write(tmp_path / "rank1.json.gz", [kernel(GATHER, 0, 10, device=3)])
    found = analyze([one, two])
    assert [(row.file, row.device) for row in found] == [(str(one), 0), (str(one), 1), (str(two), 3)]
    assert [row.communication.exposed_s for row in found] == [0, us(10), us(10)]


def test_times_are_exact_to_the_nanosecond_since_1970(tmp_path):
    text = json.dumps([kernel(GEMM, 12345, 0.25), kernel(GATHER, 54321, 1)])
    text = text.replace("12345", "1790857026000000.123").replace("54321", "1790857026000000.124")
    path = tmp_path / "t.json"
    path.write_text(text)
    found = record(path)
    assert found.start_ns.tolist() == [1_790_857_026_000_000_123, 1_790_857_026_000_000_124]
    assert (found.end_ns - found.start_ns).tolist() == [250, 1000]
    assert analyze([path])[0].communication.overlapped_s == us(0.249)


# --- advice ---


@pytest.fixture
def overlapped(trace):
    """An overlap of a GEMM of these shapes with a transfer of these arguments."""

    def build(dims=MM, types=BF16, told=SENT, name="aten::mm"):
        shapes = [operator(name, 5, dims, types)] if dims else []
        return trace(
            *shapes, kernel(GEMM, 0, 100, **{"External id": 5}), kernel("ncclDevKernel_Generic_1", 0, 50, 13, **told)
        )

    return build


def test_an_overlap_as_the_model_knows_it(overlapped):
    found = pair(overlapped().overlaps[0], load_node("mi300x_8"))
    assert found == (Gemm(4096, 2048, 8192), Collective("all-gather", 16384, 8))


@pytest.mark.parametrize(
    ("how", "part"),
    [
        ({"dims": None}, "record_shapes=True"),
        ({"dims": [[2, 64, 64], [2, 64, 64]], "name": "aten::bmm"}, "no batched GEMM"),
        ({"types": ["double"] * 2}, "no GEMM of such elements"),
        ({"told": {**SENT, "Collective name": "allreduce"}}, "this is all-reduce"),
        ({"told": {**SENT, "dtype": "?"}}, "does not say how many bytes"),
        ({"told": {**SENT, "Group size": 16}}, "collective: 16 ranks, but node mi300x_8 has 8"),
    ],
)
def test_where_there_is_no_advice_a_sentence_says_why(overlapped, how, part):
    found = overlapped(**how)
    with pytest.raises(C3Error, match=part):
        pair(found.overlaps[0], load_node("mi300x_8"))
    ((answer,),) = advise_overlaps([found], "mi300x_8", 5)
    assert answer.values is None
    assert part in answer.text


def test_advice_is_the_advisors(overlapped, tmp_path):
    import c3lib

    found = overlapped(told={**SENT, "Out msg nelems": 2**28})
    ((answer,),) = advise_overlaps([found], "mi300x_8", 5)
    expected = c3lib.advise(Gemm(4096, 2048, 8192), Collective("all-gather", 2**29, 8), "mi300x_8")
    assert answer.values == expected.to_dict()
    assert expected.reason in answer.text
    result = invoke(tmp_path / "t.json", "--node", "mi300x_8")
    assert f"advisor on 1: {expected.strategy}" in result.stdout
    content = json.loads(invoke(tmp_path / "t.json", "--node", "mi300x_8", "--json").stdout)
    assert content["devices"][0]["overlaps"][0]["advice"]["values"]["strategy"] == expected.strategy
    assert advise_overlaps([found], "mi300x_8", 0) == [[]]


def test_each_device_has_the_answers_to_its_own_overlaps(tmp_path):
    """Three GPUs with two, no and one overlap; the answer says which transfer it was asked about."""

    def beside(device, ts, kind):
        told = {**SENT, "Collective name": kind}
        return kernel(GEMM, ts, 50, device=device, **{"External id": 5}), kernel(RCCL, ts, 40, 13, device, **told)

    path = write(
        tmp_path / "t.json",
        [operator("aten::mm", 5, MM, BF16), *beside(0, 0, "allreduce"), *beside(0, 100, "broadcast"),
         kernel(GEMM, 0, 50, device=1), *beside(2, 0, "reduce_scatter")],
    )  # fmt: skip
    found = analyze([path])
    answers = advise_overlaps(found, "mi300x_8", 5)
    assert [[answer.text.split("this is ")[1] for answer in of] for of in answers] == [
        ["all-reduce", "broadcast"], [], ["reduce-scatter"]
    ]  # fmt: skip
    devices = json.loads(invoke(path, "--node", "mi300x_8", "--json").stdout)["devices"]
    for device, answered in zip(devices, answers, strict=True):
        assert [row["advice"]["text"] for row in device["overlaps"]] == [answer.text for answer in answered]
    said = re.sub(r"\s+", " ", invoke(path, "--node", "mi300x_8", "--top", "1").stdout)
    assert re.findall(r"advisor on (\d): .*?this is (\S+)", said) == [("1", "all-reduce"), ("1", "reduce-scatter")]


# --- the command ---


def test_the_page_says_never_where_a_kernel_was_never_alone(trace, tmp_path):
    trace(kernel(GEMM, 0, 100), kernel(GATHER, 0, 50, stream=13, **SENT))
    text = invoke(tmp_path / "t.json").stdout
    assert "never ran alone" in text
    row = next(line for line in text.splitlines() if GEMM in line)
    assert re.split(r"\s{2,}", row)[:9] == ["1", "1", "0.100", "never", "-", "0.050", "never", "-", "-"]
    assert "all-gather of 16 KiB over 8 ranks (ncclDevKernel_AllGather_RING_LL)" in re.sub(r"\s+", " ", text)


def test_json_has_what_the_text_has(trace, tmp_path):
    trace(kernel(GEMM, 0, 100), kernel(GATHER, 0, 50, stream=13), kernel(GEMM, 500, 80))
    content = json.loads(invoke(tmp_path / "t.json", "--json", "--top", "1").stdout)
    (device,) = content["devices"]
    assert device["communication"] == {
        "time_s": us(50), "exposed_s": 0, "beside_gemms_s": us(50), "overlapped_s": us(50)
    }  # fmt: skip
    (overlap,) = device["overlaps"]
    assert (overlap["gemm_slowdown"], overlap["transfer_slowdown"]) == (pytest.approx(1.25), None)


def test_top_limits_what_is_shown(trace, tmp_path):
    trace(*(kernel(GEMM, 100 * i, 50, grid=(i + 1, 1, 1)) for i in range(5)), kernel(GATHER, 0, 600, stream=13))
    assert "the 2 of 5 overlaps that lose most" in invoke(tmp_path / "t.json", "--top", "2").stdout
    assert "overlaps that lose most" not in invoke(tmp_path / "t.json").stdout


def test_no_overlap_is_said(trace, tmp_path):
    trace(kernel(GEMM, 0, 100))
    assert "no GEMM ran beside a transfer" in invoke(tmp_path / "t.json").stdout


def test_names_cannot_move_the_cursor(trace, tmp_path):
    trace(
        kernel("gemm\x1b[2J\x07", 0, 100),
        kernel(GATHER, 0, 50, stream=13),
        deviceProperties=[{"id": 0, "name": "\x1b[31m"}],
    )
    text = invoke(tmp_path / "t.json").stdout
    assert "gemm?[2J?" in text
    assert "\x1b" not in text


def test_a_trace_of_torch_profiler_without_a_gpu(tmp_path):
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile

    for name in ("cpu.json", "cpu.json.gz"):
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
            torch.mm(torch.ones(8, 4), torch.ones(4, 2))
        profiler.export_chrome_trace(str(tmp_path / name))
        result = invoke(tmp_path / name)
        assert result.exit_code == 2
        said = r"c3: .+cpu\.json(\.gz)?: no GPU kernel among \d\d+ events: profile with ProfilerActivity\.CUDA\n"
        assert re.fullmatch(said, result.stderr)
