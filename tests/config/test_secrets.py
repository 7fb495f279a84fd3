"""No secret is shown, and what is no secret stays as it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config.run import RunConfig
from headrace.config.secrets import HIDDEN, without_secrets

PASSWORDS = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="/&'\\"), min_size=6)


@pytest.mark.parametrize(
    "name",
    ["sasl.password", "ssl.key.password", "ssl.key.pem", "java.sasl.jaas.config", "spark.hadoop.fs.s3a.secret.key",
     "oauth.token", "ssl.keystore.password", "sasl.oauthbearer.client.secret"],
)  # fmt: skip
def test_a_setting_with_the_name_of_a_secret_is_hidden(name: str) -> None:
    assert without_secrets({name: "hunter2", "client.id": "headrace"}) == {name: HIDDEN, "client.id": "headrace"}


@given(password=PASSWORDS)
def test_the_password_of_an_address_is_hidden(password: str) -> None:
    for dsn in (f"postgresql://anna:{password}@db:5432/shop", f"host=db user=anna password={password} dbname=shop"):
        shown = without_secrets(dsn)
        assert HIDDEN in shown
        assert f":{password}@" not in shown
        assert f"={password}" not in shown
        assert "db" in shown


def test_the_settings_of_a_run_are_shown_without_secrets() -> None:
    config = RunConfig(
        kafka="k1:9092", postgres="postgresql://anna:hunter2@db/shop", kafka_settings={"sasl.password": "hunter2"}
    )
    shown = config.shown()
    assert "hunter2" not in str(shown)
    assert (shown["kafka"], shown["attempts"]) == ("k1:9092", 5)
    assert shown["postgres"] == "postgresql://anna:***@db/shop"
