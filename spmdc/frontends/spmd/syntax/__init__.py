"""From text to syntax and back: the lexer, the grammar and its nodes, the formatter."""
