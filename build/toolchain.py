"""Why a toolchain cannot be used to build."""

from __future__ import annotations


class TemplateError(Exception):
    """The template does not fit this version of Conch; the message names placeholder and remedy."""


class Unfit(Exception):
    """Toolchain or machine are not what the recipe was written for; one sentence for each finding."""
