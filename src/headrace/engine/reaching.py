"""Whether anything listens where Kafka is said to be: known at once, where a client would try again in silence."""

import socket
import time

from headrace.errors import InputError, Unreachable

__all__ = ["RESTART_SECONDS", "addresses_of", "check_reachable"]

CONNECT_SECONDS = 5.0
RESTART_SECONDS = 2.0
"""How long a program goes on trying: a broker that is just starting refuses connections too."""
PAUSE = 0.1
USUAL_ADDRESS = "127.0.0.1:9092"


def addresses_of(text: str) -> list[tuple[str, int]]:
    """`host:port,host:port` as pairs; an IPv6 host stands in brackets."""
    result = []
    for item in text.split(","):
        host, colon, port = item.strip().rpartition(":")
        host = host.rpartition("://")[2].strip("[]")
        if not colon or not host or not port.isdecimal() or int(port) > 65535:
            raise InputError(f"{text!r} is no address", next_step=f"write HOST:PORT, such as {USUAL_ADDRESS}")
        result.append((host, int(port)))
    return result


def check_reachable(text: str, seconds: float = 0.0, option: str = "--kafka") -> None:
    """Raise Unreachable with the reasons if none of the addresses takes a connection, now or within the seconds.

    `option` is how another address would be given.
    """
    limit = time.monotonic() + seconds
    while (reasons := _reasons(text)) and time.monotonic() < limit:
        time.sleep(PAUSE)
    if reasons:
        raise Unreachable(
            f"no Kafka answers at {text} ({', '.join(dict.fromkeys(reasons))})",
            next_step=f"{_how_to_start(text)} or name another with {option}",
        )


def _reasons(text: str) -> list[str]:
    """Why each address took no connection; nothing where one did."""
    reasons = []
    for host, port in addresses_of(text):
        try:
            socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
            return []
        except OSError as error:
            reasons.append((error.strerror or str(error) or type(error).__name__).lower())
    return reasons


def _how_to_start(text: str) -> str:
    (host, _), *others = addresses_of(text)
    if others or (host not in ("localhost", "::1") and not host.startswith("127.")):
        return "check the name and the port,"
    listen = "" if text == USUAL_ADDRESS else f" --listen {text}"
    return f"start one with: headrace broker --data ./log{listen},"
