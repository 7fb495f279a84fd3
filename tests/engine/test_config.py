"""Where an app runs: arguments before the environment, that before headrace.toml, that before the defaults."""

from pathlib import Path

import pytest

import headrace
from headrace.config.run import RunConfig
from headrace.config.security import java_settings, librdkafka_settings
from headrace.topology import Duration

TOML = """
kafka = "file:9092"
spark = "spark://file:7077"
home = "state"
max_records_per_batch = 1000
patience = "2 minutes"

[kafka-settings]
security.protocol = "SASL_SSL"
"sasl.username" = "me"

[topic_settings]
"retention.ms" = 1000
"""


def load(folder: Path, toml: str = "", **layers: object) -> RunConfig:
    file = folder / "headrace.toml"
    file.write_text(toml)
    arguments = layers.get("arguments", {})
    environment = layers.get("environment", {})
    assert isinstance(arguments, dict)
    assert isinstance(environment, dict)
    return RunConfig.load(arguments, environment=environment, file=file)


def test_arguments_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    environment = {"HEADRACE_KAFKA": "environment:9092", "HEADRACE_SPARK": "spark://environment:7077"}
    config = load(tmp_path, TOML, arguments={"kafka": "argument:9092", "spark": None}, environment=environment)
    assert config.kafka == "argument:9092"
    assert config.spark == "spark://environment:7077"
    assert config.max_records_per_batch == 1000
    assert config.patience == Duration.of("2 minutes")
    assert config.postgres is None


def test_settings_of_all_layers_are_put_together(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        TOML,
        environment={"HEADRACE_KAFKA_SASL_PASSWORD": "secret", "HEADRACE_KAFKA_SASL_USERNAME": "you"},
        arguments={"kafka_settings": {"sasl.mechanism": "PLAIN"}},
    )
    assert config.kafka_settings == {
        "security.protocol": "SASL_SSL",
        "sasl.username": "you",
        "sasl.password": "secret",
        "sasl.mechanism": "PLAIN",
    }
    assert config.topic_settings == {"retention.ms": "1000"}


def test_a_home_in_the_file_is_a_folder_beside_the_file(tmp_path: Path) -> None:
    assert load(tmp_path, TOML).home == tmp_path / "state"


def test_without_anything_all_is_embedded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = RunConfig.load(environment={})
    assert (config.kafka, config.spark, config.postgres, config.home) == (None, None, None, Path(".headrace"))
    with pytest.raises(headrace.EngineError, match="no Kafka address was given"):
        config.client_settings()


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ('kafk = "a:1"', "unknown setting 'kafk'; did you mean 'kafka'"),
        ("kafka = ", "is not valid TOML"),
        ('patience = "soon"', "patience: 'soon' is not a duration"),
        ("attempts = 0", "attempts: 0 is less than 1"),
        ('attempts = "many"', "attempts: 'many' is not a valid value"),
        ('kafka_settings = "x"', "must be a table"),
    ],
)
def test_what_cannot_be_understood_is_said(tmp_path: Path, toml: str, said: str) -> None:
    with pytest.raises(headrace.InputError) as raised:
        load(tmp_path, toml)
    assert said in str(raised.value)


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(headrace.InputError, match="cannot be read: no such file"):
        RunConfig.load(environment={}, file=tmp_path / "other.toml")


def test_one_set_of_settings_serves_both_clients(tmp_path: Path) -> None:
    certificate, key = tmp_path / "me.pem", tmp_path / "me.key"
    certificate.write_text("CERTIFICATE")
    key.write_text("KEY")
    given = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": 'a"b',
        "sasl.password": "c\\d",
        "ssl.ca.location": "/ca.pem",
        "ssl.certificate.location": str(certificate),
        "ssl.key.location": str(key),
        "ssl.endpoint.identification.algorithm": "none",
        "java.max.poll.records": "10",
    }
    assert java_settings(given) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="a\\"b" password="c\\\\d";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/ca.pem",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "CERTIFICATE",
        "ssl.keystore.key": "KEY",
        "ssl.endpoint.identification.algorithm": "",
        "max.poll.records": "10",
    }
    assert "java.max.poll.records" not in librdkafka_settings(given)


def test_spark_gets_them_under_its_own_prefix() -> None:
    config = RunConfig(kafka="a:1", kafka_settings={"security.protocol": "SSL"})
    assert config.connector_options() == {"kafka.bootstrap.servers": "a:1", "kafka.security.protocol": "SSL"}
    assert config.client_settings()["bootstrap.servers"] == "a:1"
