"""The commands behind ``python -m plangym_like``."""
