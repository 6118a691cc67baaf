"""What the server says about a matrix, for programs (a dict) and for people (text, pictures)."""

from __future__ import annotations

import base64
import html
import struct
import zlib
from typing import Any


class Report(dict[str, Any]):
    """The server's answer as a dictionary, which prints as text and, in notebooks, as a table."""

    def __init__(self, content: dict[str, Any], title: str, text: str | None = None) -> None:
        # `text` is what it prints; None: line by line what is in it.
        super().__init__(content)
        self.title = title
        self.text = text

    def __reduce__(self) -> tuple[Any, ...]:
        return Report, (dict(self), self.title, self.text)

    def __repr__(self) -> str:
        if self.text is not None:
            return self.text.rstrip("\n")
        return self.title + "\n" + "\n".join(_lines(self, 1))

    __str__ = __repr__

    def _repr_html_(self) -> str:
        if self.text is not None:
            return f"<b>{html.escape(self.title)}</b><pre>{html.escape(self.text)}</pre>"
        picture = density_image(self.get("density_map"))
        return f"<b>{html.escape(self.title)}</b>{picture}{_html_table(self)}"


def _number(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:.6g}"
    return str(value)


def _is_map(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 0 and isinstance(value[0], (list, int))


def _lines(content: dict[str, Any], depth: int) -> list[str]:
    lines = []
    indent = "  " * depth
    for key, value in content.items():
        if isinstance(value, dict):
            lines.append(f"{indent}{key}")
            lines += _lines(value, depth + 1)
        elif isinstance(value, list):
            if _is_map(value):
                lines.append(f"{indent}{key}: {len(value)} rows")
                continue
            lines.append(f"{indent}{key}: {len(value)}")
            for entry in value:
                if isinstance(entry, dict):
                    flat = ", ".join(
                        f"{k} {_flat(v)}" for k, v in entry.items() if v not in ("", 0)
                    )
                    lines.append(f"{indent}  {flat}")
                else:
                    lines.append(f"{indent}  {_number(entry)}")
        elif value not in ("", None):
            lines.append(f"{indent}{key}: {_number(value)}")
    return lines


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return "(" + ", ".join(f"{k} {_flat(v)}" for k, v in value.items()) + ")"
    return _number(value)


def _html_table(content: dict[str, Any]) -> str:
    rows = []
    for key, value in content.items():
        if _is_map(value):
            continue
        if isinstance(value, dict):
            cell = _html_table(value)
        elif isinstance(value, list):
            cell = "".join(
                _html_table(entry) if isinstance(entry, dict) else html.escape(_number(entry))
                for entry in value
            )
        else:
            cell = html.escape(_number(value))
        rows.append(
            f"<tr><th style='text-align:left'>{html.escape(str(key))}</th><td>{cell}</td></tr>"
        )
    return f"<table>{''.join(rows)}</table>"


def density_image(density: Any) -> str:
    """An <img> of the density map, dark where there are many nonzeros; "" without a map."""
    if not density:
        return ""
    rows = [[int(count) for count in row] for row in density]
    most = max((max(row) for row in rows if row), default=0)
    # By the logarithm, so that a few nonzeros in a tile can be seen beside many.
    scale = 1 / max(most.bit_length(), 1)
    pixels = [bytes(255 - round(215 * count.bit_length() * scale) - (25 if count else 0)
                    for count in row) for row in rows]  # fmt: skip
    data = base64.b64encode(_png(pixels)).decode()
    style = "width:256px;height:256px;image-rendering:pixelated;border:1px solid #888"
    return f'<div><img alt="pattern" style="{style}" src="data:image/png;base64,{data}"></div>'


def _png(rows: list[bytes]) -> bytes:
    """8 bits of grey a pixel."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    header = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 0, 0, 0, 0)
    scanlines = b"".join(b"\0" + row for row in rows)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(scanlines, 9))
        + chunk(b"IEND", b"")
    )
