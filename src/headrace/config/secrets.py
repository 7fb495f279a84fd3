"""Settings as they may be shown: passwords, keys and tokens are replaced."""

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["HIDDEN", "without_secrets"]

HIDDEN = "***"
SECRET_NAME = re.compile(r"password|passwd|secret|token|credential|jaas|\.key\b|private|\.pem$", re.IGNORECASE)
# Of a URL: what stands between the first colon after the user and the last @ before the host. Of a DSN: password=...
URL_PASSWORD = re.compile(r"(://[^:/@\s]*:)[^/\s]*(@)")
DSN_PASSWORD = re.compile(r"(\bpassword\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&]*)", re.IGNORECASE)


def without_secrets(value: Any, name: str = "") -> Any:
    """The value with secrets replaced: by the name of a setting, and in addresses by what stands before the host."""
    if isinstance(value, Mapping):
        return {key: without_secrets(one, str(key)) for key, one in value.items()}
    if isinstance(value, str):
        if value and SECRET_NAME.search(name):
            return HIDDEN
        return DSN_PASSWORD.sub(rf"\g<1>{HIDDEN}", URL_PASSWORD.sub(rf"\g<1>{HIDDEN}\g<2>", value))
    return value
