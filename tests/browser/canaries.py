"""Texts that would run, load or be computed where a page shows them as anything but text.

Each calls ``__canary``, which `Watch` hears, or asks for something of another origin, which it sees.
"""

ELSEWHERE = "http://elsewhere.example"

CANARIES = (
    "<script>__canary('script')</script>",
    "<img src=x onerror=\"__canary('img')\">",
    "<svg onload=\"__canary('svg')\"><script>__canary('svg script')</script></svg>",
    "\"><img src=x onerror=__canary('attribute')>",
    "'-__canary('quote')-'",
    "</script><script>__canary('closed')</script>",
    "<iframe srcdoc=\"<script>parent.__canary('frame')</script>\"></iframe>",
    "[link](javascript:__canary('link'))",
    "[tab](java\tscript:__canary('tab'))",
    "[data](data:text/html,<script>__canary('data')</script>)",
    "![picture](javascript:__canary('picture'))",
    f"![pixel]({ELSEWHERE}/pixel.png)",
    f'<link rel=stylesheet href={ELSEWHERE}/style.css><img src="{ELSEWHERE}/image.png">',
    "`<b onclick=__canary('code')>code</b>`",
    "```html\n<script>__canary('fence')</script>\n```",
    "{{constructor.constructor('__canary(1)')()}} ${__canary('literal')} {% now 'Y' %} #{__canary('ruby')}",
    "<style>@import url(http://elsewhere.example/import.css)</style>",
)

ALL = "\n\n".join(CANARIES)
SHORT = CANARIES[1] + CANARIES[0]
"""For names, which are short."""
