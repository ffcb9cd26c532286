"""How Sphinx builds these pages; ``make docs`` runs it with warnings as errors."""

import plangym_like

project = "plangym_like"
author = "The plangym_like developers"
project_copyright = "2026, the plangym_like developers"
version = release = plangym_like.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "figures"]
html_theme = "alabaster"
html_theme_options = {"description": "Step any state, by the thousand", "page_width": "1060px"}

# Docstrings put code into single backticks.
default_role = "code"
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_google_docstring = False
myst_heading_anchors = 3
