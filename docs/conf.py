"""How Sphinx builds these pages; ``make docs`` runs it with warnings as errors."""

import plangym_like

project = "plangym_like"
author = "The plangym_like developers"
project_copyright = "2026, the plangym_like developers"
version = release = plangym_like.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
myst_enable_extensions = ["colon_fence"]
exclude_patterns = ["_build", "figures"]
html_theme = "furo"
html_title = f"plangym_like {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
# The prompts and the results of doctests are not copied.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# Docstrings put code into single backticks.
default_role = "code"
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_google_docstring = False
myst_heading_anchors = 3
