"""Sphinx's settings for `make docs`, which c3lib/site.py starts; nothing in it or in what it makes uses the network."""

from c3lib import __version__

project = "c3lib"
version = release = __version__
copyright = "the authors of c3lib, Apache-2.0"
language = "en-GB"

extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown"}
root_doc = "index"
myst_heading_anchors = 3  # links to headings as a forge has them: page.md#heading-in-lower-case
suppress_warnings = ["misc.highlighting_failure"]  # code for a reader to fill in is not always code

# The reference is made where there is no GPU and no torch.
autodoc_mock_imports = ["torch", "cuda", "pynvml", "hip"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
add_module_names = toc_object_entries = False

html_theme = "alabaster"
html_theme_options = {"description": "Concurrent computation and communication on GPUs", "show_relbar_bottom": True}
templates_path = ["."]  # layout.html
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_sidebars = {"**": ["about.html", "searchbox.html", "navigation.html"]}
html_copy_source = html_show_sourcelink = html_show_sphinx = False
smartquotes = False
