"""The APIs this broker serves, and in which versions. What is not here is not advertised."""

from typing import NamedTuple

ABOVE_EVERY_VERSION = 1 << 15


class Api(NamedTuple):
    """One API: `min` to `max` are served; ApiVersions advertises from `advertised_min`.

    From `flexible_from` on, lengths are compact and structs carry tagged fields.
    """

    key: int
    name: str
    advertised_min: int
    min: int
    max: int
    flexible_from: int


def _api(key: int, name: str, low: int, high: int, flexible_from: int) -> Api:
    return Api(key, name, low, low, high, flexible_from)


_SERVED = (
    # Older librdkafka compresses only where Produce 0 is advertised; no client left sends less than 3.
    Api(0, "produce", 0, 3, 13, 9),
    _api(1, "fetch", 4, 18, 12),
    _api(2, "list_offsets", 1, 11, 6),
    _api(3, "metadata", 0, 13, 9),
    _api(8, "offset_commit", 2, 10, 8),
    _api(9, "offset_fetch", 1, 10, 6),
    _api(10, "find_coordinator", 0, 6, 3),
    _api(11, "join_group", 0, 9, 6),
    _api(12, "heartbeat", 0, 4, 4),
    _api(13, "leave_group", 0, 5, 4),
    _api(14, "sync_group", 0, 5, 4),
    _api(15, "describe_groups", 0, 6, 5),
    _api(16, "list_groups", 0, 5, 3),
    _api(18, "api_versions", 0, 4, 3),
    _api(19, "create_topics", 2, 7, 5),
    _api(20, "delete_topics", 1, 6, 4),
    _api(21, "delete_records", 0, 2, 2),
    _api(22, "init_producer_id", 0, 5, 2),
    _api(23, "offset_for_leader_epoch", 2, 4, 4),
    # AddPartitionsToTxn is spoken between brokers from 4 on; EndTxn 5 and TxnOffsetCommit 5 need
    # transaction.version 2.
    _api(24, "add_partitions_to_txn", 0, 3, 3),
    _api(25, "add_offsets_to_txn", 0, 4, 3),
    _api(26, "end_txn", 0, 4, 3),
    _api(28, "txn_offset_commit", 0, 4, 3),
    _api(32, "describe_configs", 1, 4, 4),
    _api(33, "alter_configs", 0, 2, 2),
    _api(34, "alter_replica_log_dirs", 1, 2, 2),
    _api(35, "describe_log_dirs", 1, 5, 2),
    _api(37, "create_partitions", 0, 3, 2),
    _api(42, "delete_groups", 0, 2, 2),
    _api(43, "elect_leaders", 0, 2, 2),
    _api(44, "incremental_alter_configs", 0, 1, 1),
    _api(45, "alter_partition_reassignments", 0, 1, 0),
    _api(46, "list_partition_reassignments", 0, 0, 0),
    _api(47, "offset_delete", 0, 0, ABOVE_EVERY_VERSION),
    _api(55, "describe_quorum", 0, 2, 0),
    _api(60, "describe_cluster", 0, 2, 0),
    _api(61, "describe_producers", 0, 0, 0),
    _api(65, "describe_transactions", 0, 0, 0),
    _api(66, "list_transactions", 0, 2, 0),
    _api(74, "list_config_resources", 0, 1, 0),
    _api(75, "describe_topic_partitions", 0, 0, 0),
    _api(76, "share_group_heartbeat", 1, 1, 0),
    _api(77, "share_group_describe", 1, 1, 0),
    _api(78, "share_fetch", 1, 2, 0),
    _api(79, "share_acknowledge", 1, 2, 0),
    _api(90, "describe_share_group_offsets", 0, 1, 0),
    _api(91, "alter_share_group_offsets", 0, 0, 0),
    _api(92, "delete_share_group_offsets", 0, 0, 0),
)

APIS: dict[int, Api] = {api.key: api for api in _SERVED}
