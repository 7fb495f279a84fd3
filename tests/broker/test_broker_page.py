"""docs/broker.md lists exactly the APIs and versions that are served."""

import re
from pathlib import Path

from headrace.broker.wire.apis import APIS

PAGE = Path(__file__).parents[2] / "docs" / "broker.md"
ROW = re.compile(r"^\| (\d+) \| (\w+) \| (\d+)-(\d+) \|$", re.MULTILINE)


def test_the_page_lists_what_is_served() -> None:
    listed = [(int(key), name, int(low), int(high)) for key, name, low, high in ROW.findall(PAGE.read_text())]
    served = [
        (api.key, "".join(word.capitalize() for word in api.name.split("_")), api.min, api.max) for api in APIS.values()
    ]
    assert listed == served
