"""Programs in colours: a Pygments lexer, and a TextMate grammar for editors, both of one table of patterns."""
