"""Chrome traces of GPUs: what a profiler recorded is read and analysed, what the model says or a row holds is written.

``stream`` reads events from a file in bounded memory, by the ``window`` that moves over its text; ``values`` are what
a hostile file may hold. ``names`` says what an event is, ``kernel`` what else is told of it, ``links`` which operator
launched it, ``record`` keeps what the analysis needs of it, ``intervals`` is the arithmetic, ``analysis`` the answer,
``advice`` what to change, ``page`` the text of both, ``export`` the way back.
"""
