"""Diagnostics as data."""

from __future__ import annotations

from ir.diagnostics import Diagnostic, Source, Span


def test_a_diagnostic_is_shown_with_its_place_and_not_with_the_file_it_is_in() -> None:
    source = Source("layer.py", "one = 1\n" * 500)
    found = Diagnostic("W001", "sort gathers a", Span(source, 3, 1, 3, 4))
    assert "span=<layer.py:3:1>" in repr((found,))
    assert "one" not in repr((found, source))
