"""What a framework asks: overlap or not, by which strategy, from which size on, what it gains, how sure that is.

``advice.py`` one GEMM beside one collective, ``options.py`` what each strategy would take, ``margin.py`` how far the
model was from what was measured; ``model_config.py`` and ``families.py`` a model from its ``config.json``,
``layers.py`` which GEMM runs beside which collective of it, ``dependent.py`` what has to wait for its input,
``plan.py`` advice for all of them; ``page.py`` the text of both; ``table.py`` CSV and Parquet. The function is
``c3lib.advise``.
"""
