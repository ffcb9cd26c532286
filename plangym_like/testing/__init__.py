"""Test whether an environment is saved and restored exactly."""

from plangym_like.testing.check_env import check_env
from plangym_like.testing.report import FailedCheck, Report

__all__ = ["FailedCheck", "Report", "check_env"]
