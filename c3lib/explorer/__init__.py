"""The explorer of ``00_explorer.ipynb``: a question set by sliders, answered while they move.

``question.py`` what can be asked, and the answer as data; ``drawing.py`` the answer as pictures that follow the theme
of the page; ``panel.py`` the widgets.
"""
