"""One set of client settings for two clients: librdkafka in the driver, the Java client in Spark's connector.

Most names are common to both. Where they differ, librdkafka's is what people give, and Java's is made of it.
"""

from collections.abc import Mapping
from pathlib import Path

from headrace.errors import InputError

__all__ = ["java_settings", "librdkafka_settings"]

JAVA_ONLY = "java."
SAME = (
    "security.protocol",
    "sasl.mechanism",
    "sasl.kerberos.service.name",
    "client.dns.lookup",
    "client.rack",
    "request.timeout.ms",
    "socket.connection.setup.timeout.ms",
    "metadata.max.age.ms",
    "reconnect.backoff.ms",
    "reconnect.backoff.max.ms",
    "connections.max.idle.ms",
)
LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def librdkafka_settings(given: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in given.items() if not name.startswith(JAVA_ONLY)}


def java_settings(given: Mapping[str, str]) -> dict[str, str]:
    """The settings with which the Java client connects as librdkafka does."""
    said = dict(given)
    if "sasl.mechanisms" in said:
        said.setdefault("sasl.mechanism", said["sasl.mechanisms"])
    result = {name: said[name] for name in SAME if name in said}
    result |= _trust(said) | _identity(said) | _login(said)
    return result | {name.removeprefix(JAVA_ONLY): said[name] for name in said if name.startswith(JAVA_ONLY)}


def _trust(said: Mapping[str, str]) -> dict[str, str]:
    result: dict[str, str] = {}
    if "ssl.ca.location" in said:
        result |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": said["ssl.ca.location"]}
    elif "ssl.ca.pem" in said:
        result |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": said["ssl.ca.pem"]}
    if said.get("ssl.endpoint.identification.algorithm") == "none":
        result["ssl.endpoint.identification.algorithm"] = ""
    return result


def _identity(said: Mapping[str, str]) -> dict[str, str]:
    certificate = said.get("ssl.certificate.pem") or _content(said, "ssl.certificate.location")
    key = said.get("ssl.key.pem") or _content(said, "ssl.key.location")
    if certificate and key:
        result = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": certificate,
            "ssl.keystore.key": key,
        }
    elif "ssl.keystore.location" in said:
        result = {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": said["ssl.keystore.location"]}
        if "ssl.keystore.password" in said:
            result["ssl.keystore.password"] = said["ssl.keystore.password"]
    else:
        return {}
    if "ssl.key.password" in said:
        result["ssl.key.password"] = said["ssl.key.password"]
    return result


def _login(said: Mapping[str, str]) -> dict[str, str]:
    if "sasl.username" not in said:
        return {}
    mechanism = said.get("sasl.mechanism", "PLAIN").upper()
    module = LOGIN_MODULES.get(mechanism)
    if module is None:
        return {}
    user, password = (_quoted(said.get(name, "")) for name in ("sasl.username", "sasl.password"))
    return {"sasl.jaas.config": f"{module} required username={user} password={password};"}


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _content(said: Mapping[str, str], name: str) -> str | None:
    if name not in said:
        return None
    try:
        return Path(said[name]).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{name}: {said[name]} cannot be read: {error}") from error
