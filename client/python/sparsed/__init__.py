"""Products with sparse matrices that a sparsed server holds."""

from __future__ import annotations
