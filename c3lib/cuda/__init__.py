"""One NVIDIA GPU as an instrument: buffers and byte checks, transports, SM partitions, gated regions, proof of path.

``device`` opens the GPU, ``source`` holds the kernels that are compiled at run time, ``buffers`` the bytes of a plan,
``transport`` who moves them, ``gemm`` the GEMM, ``partition`` green contexts, ``region`` the timed region, ``path`` the
proof of who moved the bytes, ``health`` clocks, power and energy. Nothing here knows a strategy or a scenario.
"""
