"""Syntax highlighting: a Pygments lexer, and a TextMate grammar for editors, both from one table of patterns."""
