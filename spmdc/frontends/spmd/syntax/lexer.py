"""Cuts a text into tokens, and rejects early what cannot be a program: binary data, very long lines, very deep nesting.

Lines are scanned one at a time, so positions cost nothing. A line that differs from earlier ones in names only is not
scanned: it has the same tokens but for the names. A nested list of plain numbers is one token, over any number of
lines, if it is long or follows `value=`, so that programs with large array literals are read quickly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from ir.diagnostics import Diagnostic, Source, Span, SpmdcError, error
from ir.names import NAME, RESERVED
from spmdc.frontends.spmd.syntax.nodes import Location

MAX_TEXT = 1 << 26
MAX_TOKENS = 2_000_000
MAX_DEPTH = 64
_MAX_REPORTED = 10
_IN_FILES = "divide it into several files, which may include one another"

_TOKEN = re.compile(
    rf"""
      (?P<NAME>{NAME})
    | (?P<FLOAT>(?:\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\.\d+(?:[eE][+-]?\d+)?)(?!\w))
    | (?P<INT>(?:0[xX][0-9a-fA-F]+|\d+)(?!\w))
    | (?P<PUNCT>[(){{}}\[\],:;@?~])
    | (?P<ARROW>->)
    | (?P<OP>\*\*|//|<=|>=|==|!=|[+*/%>&|^])
    | (?P<SIGN>[-=<!])
    | (?P<STRING>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<COMMENT>\#.*)
    | (?P<BAD>\d\w*|[^ \t\r\f])
    """,
    re.VERBOSE | re.ASCII | re.DOTALL,
)
"""The tokens of a line, except spaces."""
_NAMES = re.compile(rf"(?<![\w.])({NAME})", re.ASCII)
"""Cuts a line, outside of strings and comments, into names and what is between them."""
_TYPES = {
    "(": "LPAR", ")": "RPAR", "{": "LBRACE", "}": "RBRACE", "[": "LSQB", "]": "RSQB", ",": "COMMA", ":": "COLON",
    ";": "SEMICOLON", "@": "AT", "?": "QMARK", "~": "TILDE", "-": "MINUS", "=": "EQUAL", "<": "LESSTHAN", "!": "BANG",
}  # fmt: skip
_NESTING = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}
_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_OPENERS = {")": "(", "]": "[", "}": "{"}
_NUMBERS = re.compile(r"[-+0-9.,eE \[\]infatrulsN\r\n\t]*")
_LONG = 1 << 14
"""Lists with more characters are read at once wherever they are."""
_BEFORE_LISTS = frozenset({"EQUAL", "LPAR", "COMMA"})
_ENDS_BOUND = frozenset({"{", "}", ")", "]", ",", "=", "<", "return", "def"})
"""What is never in the bound of a loop, outside of brackets."""
_DECODER = json.JSONDecoder()
_JSON_WORDS = re.compile(r"nan|inf")
_JSON_SPELLING = {"nan": "NaN", "inf": "Infinity"}
_LOCATION = re.compile(r"#(?: (?P<file>\S(?:.*?\S)?):(?P<line>\d+)(?::(?P<column>\d+))?)?(?:  (?P<reason>\S.*))?$")
_MEANT = {
    ".": "x[:, 0] has a subscript for each dim, and functions are called by their names: sum(x)",
    "$": "names need no $", "\\": "a line needs no sign to be continued", "`": "names need no quotes",
    "\u2013": "write - for minus", "\u2212": "write - for minus", "\u00d7": "write * for times",
    "\u00b7": "write * for times", "\u00f7": "write / for division", "\u2192": "write ->",
    "\u2264": "write <=", "\u2265": "write >=", "\u2260": "write !=",
    "\u201c": 'strings are in "', "\u201d": 'strings are in "', "\u2018": 'strings are in "',
    "\u2019": 'strings are in "', "\u00a0": "write a space",
}  # fmt: skip
"""The likely meaning of some characters that no program contains."""
_SURROGATE = re.compile("[\ud800-\udfff]")
CONTEXTUAL = frozenset(
    {
        "const",
        "mesh",
        "include",
        "spmd",
        "plan",
        "while",
        "repeat",
        "loop",
        "cond",
        "do",
        "of",
        "case",
        "or",
        "if",
        "else",
        "manual",
        "checkpoint",
        "precision",
    }
)
OPENERS = frozenset({"LPAR", "HEAD", "LSQB", "LBRACE", "ANNOTATION"})
"""The types of tokens that open a bracket."""
_WORDS = CONTEXTUAL | RESERVED
"""Names that may be keywords."""


class Token:
    """One token, with the attributes that lark uses. `start_pos` is its index among the tokens."""

    __slots__ = ("column", "end_column", "end_line", "line", "literal", "start_pos", "text", "type")

    def __init__(self, type: str, text: str, index: int, line: int, column: int) -> None:
        self.type = type
        self.text = text
        self.start_pos = index
        self.line = self.end_line = line
        self.column = column
        self.end_column = column + len(text)
        self.literal: tuple[object, ...] = ()

    @property
    def end_pos(self) -> int:
        return self.start_pos

    def span(self, source: Source) -> Span:
        return Span(source, self.line, self.column, self.end_line, self.end_column)


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment, its `#` included, and whether it follows a token on its line."""

    line: int
    column: int
    text: str
    trailing: bool


@dataclass(frozen=True, slots=True)
class _Form:
    """The tokens of lines that have the same texts between names: the type, the text, which is empty for a name, and
    the number of spaces before it. `marks` are those of `Tokens`, counted from the first token of the line."""

    tokens: tuple[tuple[str, str, int], ...]
    marks: tuple[int, ...]


@dataclass
class Tokens:
    """The tokens of a text, and its errors at this level."""

    source: Source
    tokens: list[Token] = field(default_factory=list[Token])
    comments: list[Comment] = field(default_factory=list[Comment])
    diagnostics: list[Diagnostic] = field(default_factory=list[Diagnostic])
    bracket_errors: dict[int, Diagnostic] = field(default_factory=dict[int, Diagnostic])
    """Brackets without a partner, by index of the token."""
    partner: dict[int, int] = field(default_factory=dict[int, int])
    """The index of the closing bracket of each opening one, if any."""
    marks: list[int] = field(default_factory=list[int])
    """The brackets, and the names that may be keywords, by index of the token."""
    cut_short: bool = False
    """Whether an unterminated string has consumed the rest of its line, brackets included."""
    forms: dict[tuple[str, ...], _Form | None] = field(default_factory=dict[tuple[str, ...], "_Form | None"])
    """The forms of lines by the texts between their names; None for lines that have occurred once."""

    def locations(self) -> dict[int, Location]:
        """The trailing comments that have the form `# file:line  reason`, by line."""
        found: dict[int, Location] = {}
        for comment in self.comments:
            match = _LOCATION.match(comment.text) if comment.trailing else None
            if match is None or not (match["file"] or match["reason"]):
                continue
            line, column = int(match["line"] or 0), int(match["column"] or 1)
            found[comment.line] = Location(match["file"] or "", line, column, match["reason"] or "")
        return found


def tokenize(source: Source) -> Tokens:
    """Cuts the text. Raises SpmdcError (E002, E003, E004) if it is pointless to continue."""
    text = source.text or ""
    _check_size(source, text)
    result = Tokens(source)
    lines = text.split("\n")
    number, start, position = 1, 0, 1 if text.startswith("\ufeff") else 0
    while number <= len(lines):
        line = lines[number - 1]
        literal = _scan_line(result, line, number, position, start) if position else _line(result, line, number, start)
        if literal is None:
            number, start, position = number + 1, start + len(line) + 1, 0
        else:
            start += sum(map(len, lines[number - 1 : literal.end_line - 1])) + literal.end_line - number
            number, position = literal.end_line, literal.end_column - 1
    _match_brackets(result)
    _find_keywords(result)
    return result


def _check_size(source: Source, text: str) -> None:
    if len(text) > MAX_TEXT:
        message = f"the text has {len(text):,} characters; a program has at most {MAX_TEXT:,}"
        raise error("E004", message, help=_IN_FILES)
    if text.isascii():
        return
    surrogate = _SURROGATE.search(text)
    if surrogate is not None:
        line = text.count("\n", 0, surrogate.start()) + 1
        column = surrogate.start() - (text.rfind("\n", 0, surrogate.start()) + 1) + 1
        message = "the file is not text: it holds bytes that are not UTF-8"
        raise error("E002", message, Span(source, line, column, line, column + 1), help="save the program as UTF-8")


def _line(result: Tokens, line: str, number: int, begin: int) -> Token | None:
    """The tokens of a whole line, as `_scan_line` finds them. They are known if lines of its form have been scanned."""
    if len(line) >= _LONG or '"' in line or "'" in line or "value" in line:
        return _scan_line(result, line, number, 0, begin)
    code, sign, comment = line.partition("#")
    pieces = _NAMES.split(code)
    between, names = tuple(pieces[::2]), pieces[1::2]
    if not _WORDS.isdisjoint(names):
        return _scan_line(result, line, number, 0, begin)
    form = result.forms.get(between)
    if form is None:
        before = len(result.tokens), len(result.marks), len(result.diagnostics)
        literal = _scan_line(result, line, number, 0, begin)
        # Most forms occur once.
        is_second = between in result.forms and literal is None
        result.forms[between] = _form(result, *before, names) if is_second else None
        return literal
    tokens, column = result.tokens, 1
    result.marks.extend([len(tokens) + i for i in form.marks])
    following = iter(names)
    for kind, known, spaces in form.tokens:
        text = known or next(following)
        column += spaces
        tokens.append(Token(kind, text, len(tokens), number, column))
        column += len(text)
    if sign:
        result.comments.append(Comment(number, len(code) + 1, (sign + comment).rstrip(), bool(form.tokens)))
    _check_count(result)
    return None


def _form(result: Tokens, tokens: int, marks: int, diagnostics: int, names: list[str]) -> _Form | None:
    """The form of the line with these names that was scanned last, when there were as many tokens, marks and
    diagnostics. None if it has errors, or does not close the brackets that it opens."""
    made, column, found = result.tokens[tokens:], 1, list[tuple[str, str, int]]()
    for token in made:
        found.append((token.type, "" if token.type == "NAME" else token.text, token.column - column))
        column = token.end_column
    if sum(_NESTING.get(token.text, 0) for token in made) or len(result.diagnostics) > diagnostics:
        return None
    if [token.text for token in made if token.type == "NAME"] != names:
        return None
    return _Form(tuple(found), tuple([i - tokens for i in result.marks[marks:]]))


def _scan_line(result: Tokens, line: str, number: int, position: int, begin: int) -> Token | None:
    """Scans the tokens from a position of a line on, up to a list that is read at once, which is returned. `begin` is
    the position in the text of the line's beginning."""
    tokens, marks = result.tokens, result.marks
    first = len(tokens) if position <= 1 else -1
    unmatched = 0
    for match in _TOKEN.finditer(line, position):
        kind, text, start = match.lastgroup or "", match[0], match.start()
        if kind == "NAME":
            if text in _WORDS:
                marks.append(len(tokens))
        elif kind == "PUNCT" or kind == "SIGN":
            if text == "[" and tokens and tokens[-1].type in _BEFORE_LISTS:
                token = _literal(result, number, begin + start, start, short=_behind_value(tokens))
                if token is not None:
                    tokens.append(token)
                    return token
            kind = _TYPES[text]
            if text in _NESTING:
                marks.append(len(tokens))
                unmatched += _NESTING[text]
                if unmatched > MAX_DEPTH:
                    raise _too_deep(Token(kind, text, 0, number, start + 1), result.source)
        elif kind == "COMMENT":
            result.comments.append(Comment(number, start + 1, text.rstrip(), len(tokens) > first))
            return None
        elif kind == "BAD":
            _report_bad(result, number, start, text)
            if text in "\"'":
                result.cut_short = True
                return None
            continue
        tokens.append(Token(kind, text, len(tokens), number, start + 1))
        if len(tokens) > MAX_TOKENS:
            _check_count(result)
    return None


def _check_count(result: Tokens) -> None:
    if len(result.tokens) > MAX_TOKENS:
        message = f"the program has more than {MAX_TOKENS:,} names, numbers and signs"
        raise error("E004", message, result.tokens[MAX_TOKENS].span(result.source), help=_IN_FILES)


def _report_bad(result: Tokens, number: int, start: int, text: str) -> None:
    """Reports characters that are no token."""
    span = Span(result.source, number, start + 1, number, start + 1 + len(text))
    if text in "\"'":
        result.diagnostics.append(
            Diagnostic("E001", "the string is not closed on its line", span, help='end it with a "')
        )
        return
    if text[0].isdigit() and text.isascii():
        is_shape = re.match(r"\d+(x\d+)+(x|$)", text) is not None
        help = "commas are between the sizes of a type: f32[8, 4]" if is_shape else "names begin with a letter"
        result.diagnostics.append(Diagnostic("E001", f"{text[:40]!r} is neither a number nor a name", span, help=help))
        return
    shown = repr(text) if text.isprintable() else f"U+{ord(text[0]):04X}"
    message = f"no program contains the character {shown}"
    if sum(d.code == "E002" for d in result.diagnostics) + 1 >= _MAX_REPORTED:
        stopped = ("reading stopped here, at the tenth such character",)
        last = Diagnostic("E002", message, span, notes=stopped, help=_instead_of(text))
        raise SpmdcError((*result.diagnostics, last))
    result.diagnostics.append(Diagnostic("E002", message, span, help=_instead_of(text)))


def _instead_of(text: str) -> str:
    """The likely meaning of a character that no program contains."""
    known = _MEANT.get(text)
    if known is not None:
        return known
    if text.isalpha():
        return "names consist of the letters a to z and A to Z, digits and _"
    return "leave it out; outside of comments and strings a program is written in ASCII"


def _behind_value(tokens: list[Token]) -> bool:
    return len(tokens) > 1 and tokens[-1].text == "=" and tokens[-2].text == "value"


def _literal(result: Tokens, number: int, start: int, column: int, *, short: bool) -> Token | None:
    """The list of numbers that begins at `start` in the text, as a token; None for anything else. It must be long, or
    be on one line if `short` is allowed."""
    text = result.source.text or ""
    match = _NUMBERS.match(text, start)
    assert match is not None
    if not short and match.end() - start < _LONG:
        return None
    some, longer = match[0], 0
    if "n" in some:
        some, longer = _JSON_WORDS.sub(lambda m: _JSON_SPELLING[m[0]], some), len("Infinity") - len("inf")
    try:
        values, end = _DECODER.raw_decode(some)
        literal, lists = _tupled(values, MAX_DEPTH)
    except (ValueError, RecursionError):
        return None
    if lists != some.count("[", 0, end) or (end < _LONG and (not short or "\n" in some[:end])):
        return None
    end += start - longer * some.count("Infinity", 0, end)
    token = Token("LITERAL", text[start:end], len(result.tokens), number, column + 1)
    token.literal = literal
    if breaks := text.count("\n", start, end):
        token.end_line, token.end_column = number + breaks, end - text.rfind("\n", 0, end)
    return token


def _tupled(values: list[object], depth: int) -> tuple[tuple[object, ...], int]:
    """Nested lists as tuples, assuming that all entries of a list are lists if the first one is, and the number of
    elements. Raises ValueError if they are nested deeper than `depth`."""
    if not depth:
        raise ValueError("lists are nested too deep")
    if not values or not isinstance(values[0], list):
        return tuple(values), 1
    rows = [_tupled(v, depth - 1) if isinstance(v, list) else (v, 0) for v in values]
    return tuple(row for row, _ in rows), 1 + sum(count for _, count in rows)


def _match_brackets(result: Tokens) -> None:
    """Pairs brackets. `def` at the start of a line closes all of them, because functions do not nest."""
    open_brackets: list[int] = []
    tokens, source = result.tokens, result.source

    def unclosed(index: int) -> None:
        token = tokens[index]
        message, help = f"{token.text!r} is never closed", f"close it by {_CLOSERS[token.text]!r}"
        result.bracket_errors[index] = Diagnostic("E001", message, token.span(source), help=help)

    for index in result.marks:
        token = tokens[index]
        text = token.text
        if text in _CLOSERS:
            open_brackets.append(index)
            if len(open_brackets) > MAX_DEPTH:
                raise _too_deep(token, source)
        elif text in _OPENERS:
            _close(result, open_brackets, index, unclosed)
        elif text == "def" and token.column == 1:
            for opened in open_brackets:
                unclosed(opened)
            open_brackets.clear()
    for opened in open_brackets:
        unclosed(opened)


def _too_deep(token: Token, source: Source) -> SpmdcError:
    message = f"brackets nest deeper than {MAX_DEPTH} levels here"
    return error("E003", message, token.span(source), help="give inner expressions names of their own")


def _close(result: Tokens, open_brackets: list[int], index: int, unclosed: Callable[[int], None]) -> None:
    tokens = result.tokens
    token = tokens[index]
    wanted = _OPENERS[token.text]
    if any(tokens[opened].text == wanted for opened in reversed(open_brackets)):
        while tokens[open_brackets[-1]].text != wanted:
            unclosed(open_brackets.pop())
        result.partner[open_brackets.pop()] = index
        return
    if open_brackets and _is_mistyped(tokens[open_brackets[-1]], token):
        opened = open_brackets.pop()
        result.partner[opened] = index
        message = f"{token.text!r} closes {tokens[opened].text!r}"
        help_text = f"{_CLOSERS[tokens[opened].text]!r} closes it"
        result.bracket_errors[index] = Diagnostic("E001", message, token.span(result.source), help=help_text)
        return
    message = f"{token.text!r} closes nothing"
    result.bracket_errors[index] = Diagnostic(
        "E001", message, token.span(result.source), help="leave it out, or open it before"
    )


def _is_mistyped(last: Token, token: Token) -> bool:
    """Whether a closing bracket probably belongs to the bracket that was opened last, although all open ones are of
    another kind."""
    return last.text != "{" and last.line == token.line


def _find_keywords(result: Tokens) -> None:
    """Turns names into keywords where they are used as such, `{` into ANNOTATION after a type, and `(` into HEAD where
    it lists what a counted loop carries."""
    tokens, partner = result.tokens, result.partner
    depth = 0
    for i in result.marks:
        token = tokens[i]
        text = token.text
        if token.type == "LBRACE":
            if _is_annotation(tokens, i):
                token.type = "ANNOTATION"
            depth += 1
        elif token.type in ("LPAR", "HEAD", "LSQB"):
            depth += 1
        elif token.type in ("RPAR", "RSQB", "RBRACE"):
            depth = max(0, depth - 1)
        elif text in RESERVED:
            token.type = text.upper()
            depth = 0 if text == "def" and token.column == 1 else depth
        elif _is_keyword(tokens, i, depth, partner):
            token.type = text.upper()
            if text in ("repeat", "loop"):
                _mark_head(tokens, i + 3, partner)
        elif text == "precision" and _begins_item(tokens, i, depth):
            token.type = "PRECISION_ITEM"


def _mark_head(tokens: list[Token], i: int, partner: dict[int, int]) -> None:
    """Marks the bracket of what a counted loop carries: the first bracket behind token `i`, where the bound begins,
    that a block follows, or the last one if the block is missing. Another is part of the bound, as in `cdiv(n, 2)`."""
    head = None
    while i < len(tokens) and tokens[i].text not in _ENDS_BOUND:
        if tokens[i].type == "LPAR":
            head = tokens[i]
            if _type_at(tokens, partner.get(i, i) + 1) == "LBRACE":
                break
        i = partner.get(i, i) + 1
    if head is not None:
        head.type = "HEAD"


def _type_at(tokens: list[Token], i: int) -> str:
    return tokens[i].type if 0 <= i < len(tokens) else ""


def _begins_item(tokens: list[Token], i: int, depth: int) -> bool:
    """Whether a word followed by a bracket begins an item, rather than being the name of a function or a mesh."""
    outside = depth == 0 or tokens[i].column == 1
    return outside and _type_at(tokens, i + 1) == "LPAR" and _type_at(tokens, i - 1) not in ("DEF", "MESH")


def _is_keyword(tokens: list[Token], i: int, depth: int, partner: dict[int, int]) -> bool:
    token, following = tokens[i], _type_at(tokens, i + 1)
    if _type_at(tokens, i - 1) in ("DEF", "MESH") and tokens[i - 1].line == token.line:
        return False  # It is the name of what is declared.
    match token.text:
        case "const" | "mesh" | "spmd":
            return depth == 0 or (token.column == 1 and following in ("NAME", "LPAR"))
        case "plan":
            return depth == 0 and token.column == 1
        case "include":
            return following == "STRING" and (depth == 0 or token.column == 1)
        case "while":
            return following == "LPAR"
        case "checkpoint" if following == "LBRACE":
            return True
        case "case" | "if" | "manual" | "checkpoint" | "precision":
            return following == "LPAR" and _type_at(tokens, partner.get(i + 1, i) + 1) in ("LBRACE", "")
        case "repeat" | "loop":
            return following == "NAME" and _type_at(tokens, i + 2) == "LESSTHAN"
        case "of":
            behind = _type_at(tokens, i - 1) in ("RSQB", "RBRACE", "NAME")
            return behind and following == "NAME" and _type_at(tokens, i + 2) == "LSQB"
        case _:
            return following == "LBRACE"


def _is_annotation(tokens: list[Token], i: int) -> bool:
    if _type_at(tokens, i - 1) != "RSQB" or _type_at(tokens, i + 1) != "NAME":
        return False
    word, following = tokens[i + 1].text, _type_at(tokens, i + 2)
    if word not in ("partial", "replicated"):
        return False
    return following in ("RBRACE", "SEMICOLON") or (following == "COLON" and _type_at(tokens, i + 4) != "LSQB")
