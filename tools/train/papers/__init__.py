"""The papers' own models, trained and judged on measurements of ours: docs/selector.md, "The papers' own models"."""


class DataError(Exception):
    """Input that cannot be used: the message says which and why; the program ends with exit code 3."""
