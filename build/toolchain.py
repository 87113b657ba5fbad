"""Reasons why a toolchain cannot be used to build."""

from __future__ import annotations


class TemplateError(Exception):
    """The template does not fit this version of Conch; the message names placeholder and remedy."""


class Unfit(Exception):
    """Toolchain or machine do not match the recipe; one sentence for each finding."""
