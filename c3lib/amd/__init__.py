"""AMD GPUs as an instrument: SDMA engines driven through AMD's own user-space runtime (ROCr, ``libhsa-runtime64``).

:mod:`c3lib.amd.table` is the one list of what is used of the library, :mod:`c3lib.amd.runtime` opens it. Nothing here
needs a GPU, a driver or ROCm to be imported. See ``docs/architecture.md`` for what else is here.
"""
