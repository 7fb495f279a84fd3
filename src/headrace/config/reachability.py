"""Whether a Kafka broker answers at an address: known at once, where a client would retry silently."""

import socket
import struct
import time

from headrace.errors import InputError, Unreachable

__all__ = ["RESTART_SECONDS", "USUAL_ADDRESS", "addresses_of", "check_reachable"]

CONNECT_SECONDS = 5.0
RESTART_SECONDS = 2.0
"""How long a program goes on trying: a broker that is just starting refuses connections too."""
PAUSE = 0.1
USUAL_ADDRESS = "127.0.0.1:9092"
"""Where a broker listens unless it is told otherwise."""
PLAIN = ("PLAINTEXT", "SASL_PLAINTEXT")
API_VERSIONS = 18
PROBE_ID = 0x48454144
# The line breaks are for servers of text, HTTP's above all: they answer once they have a line.
CLIENT_ID = b"headrace\r\n\r\n"


class _NotKafka(Exception):
    """What listens there is no Kafka broker."""


def addresses_of(text: str) -> list[tuple[str, int]]:
    """`host:port,host:port` as pairs; an IPv6 host stands in brackets."""
    result = []
    for item in text.split(","):
        host, colon, port = item.strip().rpartition(":")
        host = host.rpartition("://")[2].strip("[]")
        if not colon or not host or not port.isdecimal() or int(port) > 65535:
            raise InputError(f"{text!r} is not an address", next_step=f"write HOST:PORT, such as {USUAL_ADDRESS}")
        result.append((host, int(port)))
    return result


def check_reachable(
    text: str, seconds: float = 0.0, option: str = "--kafka", security_protocol: str | None = None
) -> None:
    """Raise Unreachable with the reasons if no broker answers at any of the addresses, now or within the seconds.

    `option` is how another address would be given. With TLS, or where the protocol is not known, only the connection
    itself is tried.
    """
    is_plain = security_protocol is not None and security_protocol.upper() in PLAIN
    limit = time.monotonic() + seconds
    while (errors := _errors(text, is_plain)) and time.monotonic() < limit:
        time.sleep(PAUSE)
    if errors:
        is_taken = any(isinstance(error, _NotKafka) for error in errors)
        raise Unreachable(
            f"no Kafka answers at {text} ({', '.join(dict.fromkeys(map(_reason, errors)))})",
            next_step=f"{_how_to_start(text, is_taken)} or set another address with {option}",
        )


def _errors(text: str, is_plain: bool) -> list[Exception]:
    """Why each address cannot be used; nothing if one can."""
    errors: list[Exception] = []
    for address in addresses_of(text):
        try:
            with socket.create_connection(address, timeout=CONNECT_SECONDS) as connection:
                if is_plain:
                    _probe(connection)
            return []
        except (OSError, _NotKafka) as error:
            errors.append(error)
    return errors


def _probe(connection: socket.socket) -> None:
    """Ask for the API versions, which every broker answers, before any login."""
    body = struct.pack(">hhih", API_VERSIONS, 0, PROBE_ID, len(CLIENT_ID)) + CLIENT_ID
    answer = b""
    try:
        connection.sendall(struct.pack(">i", len(body)) + body)
        while len(answer) < 8 and (part := connection.recv(8 - len(answer))):
            answer += part
    except TimeoutError:
        raise _NotKafka(f"it accepts connections but did not answer within {CONNECT_SECONDS:.0f} s") from None
    except ConnectionError:
        pass  # the same as a connection that is closed in peace
    if not answer:
        raise _NotKafka("it closed the connection without an answer")
    if answer[4:] != struct.pack(">i", PROBE_ID):
        speaks = "it speaks TLS: set security.protocol" if answer[:2] == b"\x15\x03" else "it does not speak Kafka"
        raise _NotKafka(speaks)


def _reason(error: Exception) -> str:
    if isinstance(error, _NotKafka):
        return str(error)
    said = error.strerror if isinstance(error, OSError) else None
    return (said or str(error) or type(error).__name__).lower()


def _how_to_start(text: str, is_taken: bool) -> str:
    (host, _), *others = addresses_of(text)
    if is_taken:
        return "check the port,"
    if others or (host not in ("localhost", "::1") and not host.startswith("127.")):
        return "check the host name and the port,"
    listen = "" if text == USUAL_ADDRESS else f" --listen {text}"
    return f"start a broker with: headrace broker --data ./log{listen},"
