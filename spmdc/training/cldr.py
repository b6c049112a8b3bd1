"""Parallel phrases from Unicode's locale data (CLDR), through the package Babel: the names of territories, languages,
scripts, currencies, units, months and days, and written dates and numbers, in some 260 locales and in English.

This is real text, and as unevenly distributed as GShard's: from a hundred phrases of a locale to more than a thousand.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import cache
from types import MappingProxyType
from typing import Any

Names = Mapping[str, str]


@cache
def locale_names() -> tuple[str, ...]:
    """The locales, such as `de` and `sr_Latn`: one for a language in each of its scripts, without those of
    territories."""
    # Imported late, like each import below, because Babel comes with an extra.
    from babel import localedata

    names = (name for name in localedata.locale_identifiers() if name not in ("root", "en"))
    return tuple(sorted(name for name in names if all(len(part) == 4 for part in name.split("_")[1:])))


def why_not(name: str) -> tuple[str, str]:
    """Why a locale of Unicode has no phrases, and help; empty if there is no locale with this name."""
    from babel import localedata

    language, *parts = name.split("_")
    if not localedata.exists(name):
        return "", ""
    if language == "en":
        return "English is what phrases are translated into", "leave it out"
    without = "_".join([language, *(part for part in parts if len(part) == 4)])
    return ("a locale has no territory here", f"name {without}") if without in locale_names() else ("", "")


def phrases_of(locale: str, kind: str) -> Iterator[tuple[str, str]]:
    """The locale's phrases of a kind, each with its English, except those that are the same in English, and
    placeholders for names that a locale does not have (`M01`)."""
    english, lacking = _names("en", kind), _names("root", kind)
    for key, text in _names.__wrapped__(locale, kind).items():
        if key in english and text not in (english[key], lacking.get(key)):
            yield text, english[key]


@cache
def _names(locale: str, kind: str) -> Names:
    from babel import Locale

    return KINDS[kind](Locale.parse(locale))


def _calendar(of: str) -> Callable[[Any], Names]:
    """The names of months or days, stand-alone and abbreviated."""

    def names(locale: Any) -> Names:
        forms = getattr(locale, of)["format"]
        return {f"{form} {n}": text for form in ("wide", "abbreviated") for n, text in forms[form].items()}

    return names


def _units(locale: Any) -> Names:
    names = {unit: forms.get("long", "") for unit, forms in locale.unit_display_names.items()}
    return {unit: text for unit, text in names.items() if text}


_DAYS = tuple(datetime.date(2019, 1, 3) + datetime.timedelta(days=41 * i) for i in range(36))
_NUMBERS = tuple(Decimal(n) * s for n in (1, 12, 99, 100, 1000, 86_400, 2_500_000) for s in (1, Decimal("0.125")))


def _dates(locale: Any) -> Names:
    from babel.dates import format_date

    return {f"{day} {form}": format_date(day, form, locale) for day in _DAYS for form in ("long", "full")}


def _numbers(locale: Any) -> Names:
    from babel.numbers import format_decimal, format_percent

    decimals = {f"{n}": format_decimal(n, locale=locale) for n in _NUMBERS}
    return decimals | {f"{n}%": format_percent(n / 100, locale=locale, decimal_quantization=False) for n in _NUMBERS}


def _table(of: str) -> Callable[[Any], Names]:
    return lambda locale: getattr(locale, of)


KINDS: Mapping[str, Callable[[Any], Names]] = MappingProxyType(
    {
        **{of: _table(of) for of in ("territories", "languages", "scripts", "currencies")},
        "units": _units,
        **{of: _calendar(of) for of in ("months", "days")},
        "dates": _dates,
        "numbers": _numbers,
    }
)
"""The kinds of phrases. Each returns a locale's phrases by keys that all locales share."""
