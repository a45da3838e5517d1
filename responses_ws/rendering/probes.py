"""Texts by which two tokenizers show that they differ."""

from collections.abc import Collection, Iterator

_SPACES = (" ", "\t", "\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x85", "\xa0", "\u1680", "\u2003", "\u2028", "\u3000")
_LETTERS = "aZéßſKıİǅªºµ\u0300\u0301Ωжאبकกあア漢한ᄒ\u1160ᏣꙂﬁ\u1e9b\u0323ａ１𝔸𐐷𞤢"
# The newest that Unicode 14 to 17 have added: letters, marks, digits, symbols.
_NEW = "\U0001df00\U0001e290\U00011f02\U0001e4d0\U0002ebf0\U0002ee5d"
_NEW += "\U000105c0\U00016d40\U00016ea0\U000323b0\U00011de0\U00016ff4\u1acf"
_NUMBERS = "0٣७๙०½²Ⅷ①〇𝟘፩"
_MARKS = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~¡«·×€—’“…№†。、「・゠ー\u3040\u3099゛𝛁\ufe0f\u20e3"
_OTHERS = "\0\x01\x04\x06\x13\x1b\x7f\x80\xad\u0378\u200b\u200d\u202e\u2060\ud7fb\ue000\ufdd0\ufeff\ufffd\uffff"
_OTHERS += "\U0001f600\U000e0041\U000f0000\U0010ffff\U00040000\U00080000"
_CONTRACTIONS = ("'s", "'T", "'re", "'VE", "'m", "'Ll", "'d", "'ſ", "’s", "''s", "'sa", " 's", "'", "'ll've", "'\n")

_TEXTS = (
    "",
    "The quick brown fox can't jump over 13 lazy dogs; it'll try again at 07:45.  Will it?\n\nYes!\n",
    "  leading, trailing  \n \n\t mixed \r\n\r\n lines\r",
    "Größe, naïve café, Ångström: e\u0301 o\u0308 A\u030a n\u0303o; ½ of 10 000 €, 3.14e-10, 0xDEADBEEF, 1,234,567.89",
    "你好，世界！東京都の天気は晴れです。カタカナ・ひらがな゠漢字々〆 안녕하세요 \u1112\u1161\u11ab\u1100\u1173\u11af",
    "フ・ア゠フ\u3040フ\u3097フ\u3098か\u3099゛漢・字\u3097a漢字1漢  漢 字 ・\n・ 。a゠\r\n",
    "مرحبا بالعالم، ١٢٣٤ שָׁלוֹם עולם हिन्दी में लिखा हुआ ไทยไม่มีวรรค Привет, мир! Γειά σου Κόσμε ქართული አማርኛ",
    "👩\u200d👩\u200d👧\u200d👦👍🏽🇩🇪🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f x",
    "❤\ufe0f\u200d🔥 #\ufe0f⃣ (╯°□°)╯︵ ┻━┻ ∀x∈ℝ: ⌈x⌉ = −⌊−x⌋ Z̷̛͔a̸l̶g̵o̷",
    'def f(x: int = 0) -> str:\n    """Doc."""\n    return f"{x!r:>{8}}" if x != 1_0 else None\n\n\nclass A(B): ...\n',
    'for(int i=0;i<10;++i){\n\tprintf("%d\\n", a[i]->b);\n}\n// x\r\n#include <stdio.h>\n/* *** */ template<class T>',
    '{"a": [1, 2.5e3, null, true], "b\\u00e9": "\\"q\\"", "path": "C:\\\\x\\\\y"}\n<p class="a b">&amp;</p><!-- -->',
    "SELECT * FROM t WHERE a='b''c' -- x\n\t;\n$ ls | echo \"$HOME\" >/dev/null 2>&1\n@@ -1,3 +1,4 @@\n-\told\n+\tnew",
    "https://example.org/a/b?c=d&e=%20#f me@example.org 127.0.0.1 2026-11-30T12:00:00Z sha256:9f86d081884c aGVsbG8=",
    "IT'S HE'LL THEY'VE I'D camelCaseHTTPServer snake_case kebab-case CONST_42 x86_64 1st 2nd",
)


def probes(names: Collection[str]) -> Iterator[str]:
    """Texts of every kind, and with the names of control tokens whole, cut and glued."""
    yield from _TEXTS
    for space in _SPACES:
        yield "".join(f"{space * count}{mark}" for count in (1, 2, 3, 4, 7, 8, 16, 17, 33) for mark in ("a", "1", "."))
        yield f"x{space}"
        yield f" {space} {space}\n{space}y {space}"
    yield "".join(first + second + "b" for first in _SPACES for second in _SPACES)
    for letters in (_LETTERS, _NEW, _NUMBERS, _MARKS, _OTHERS):
        yield letters
        for one in letters:
            yield f"{one}a{one} {one}1{one}{one}.{one}\n{one}  {one}"
    yield "".join(f"we{end} {end}1{end}" for end in _CONTRACTIONS)
    for count in (99, 100, 101, 1000):
        yield from ("a" * count, "ab" * count, "é" * count, "漢字" * count, "." * count, "=-" * count, "7" * count)
        yield from (" " * count, " " * count + "x", "\n" * count, "\t \n" * count, "'" * count, "\u0301" * count)
    yield "".join(f"a {name}{name[:-1]} {name[1:]}\n{name}" for name in names)
    for name in [*names][:64]:
        yield f"  {name} {name.upper()}{name.lower()}\t{name}\n\n{name}{name}"
        yield from (name, f"{name} ", f"It is {name}, not {name[: len(name) // 2]}", name[len(name) // 2 :])
