"""What secrets and keys look like, in RE2's syntax.

Each has a prefix that nothing else has, and is found when its least length is there: what is held back of an answer
covers that. Sources: the issuers' own descriptions of their formats.
"""

SECRETS = {
    "private_key": (
        r"-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY-----[\sA-Za-z0-9+/=\\]*(?:-----END [A-Z0-9 ]{0,40}-----)?"
    ),
    "aws_access_key": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "sk_key": r"\bsk-[A-Za-z0-9_-]{20,}",
    "github_token": r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{22,})",
    "gitlab_token": r"\bglpat-[A-Za-z0-9_-]{20,}",
    "slack_token": r"\bxox[abeprs]-[A-Za-z0-9-]{10,}",
    "google_api_key": r"\bAIza[A-Za-z0-9_-]{35}",
    "stripe_key": r"\b[rs]k_(?:live|test)_[A-Za-z0-9]{16,}",
    "npm_token": r"\bnpm_[A-Za-z0-9]{36}",
    "pypi_token": r"\bpypi-[A-Za-z0-9_-]{16,}",
    "huggingface_token": r"\bhf_[A-Za-z0-9]{30,}",
    "json_web_token": r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]*)?",
    "password_in_url": r"\b[a-z][a-z0-9+.-]{1,20}://[^\s/:@]{1,64}:[^\s/:@]{3,64}@",
}
