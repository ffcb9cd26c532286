"""Test whether an environment is saved and restored exactly."""

from plangym_like.testing.check_env import check_env
from plangym_like.testing.report import BrokenPromise, Report

__all__ = ["BrokenPromise", "Report", "check_env"]
