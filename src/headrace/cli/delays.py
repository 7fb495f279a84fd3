"""`headrace delays`: the service that hands delayed messages over, where neither `up` nor `run` starts it."""

from headrace.cli.apps import ConfigFile, HomeFolder, KafkaAddress, KafkaSet, load_config
from headrace.cli.options import check_address
from headrace.cli.output import note


def run(
    kafka: KafkaAddress = None, kafka_set: KafkaSet = None, home: HomeFolder = None, config: ConfigFile = None
) -> None:
    """Hand delayed messages over when they are due. Of several that run on a cluster, one is active."""
    check_address(kafka)
    settings = load_config(file=config, home=home, kafka=kafka, kafka_set=kafka_set)
    from headrace.queues import serve_until_stopped
    from headrace.services import with_kafka

    serve_until_stopped(with_kafka(settings, "--kafka"), note)
