"""PostgreSQL tables as sinks: the rows of a batch, its number and the offsets it covers in one transaction."""

from headrace.engine.write.row_sink import RowSinkAdapter, RowStore, SinkContext
from headrace.tables import ViewWriter, shown

__all__ = ["PostgresSinkAdapter"]


class PostgresSinkAdapter(RowSinkAdapter):
    ledger_name = "postgres"

    def store(self, context: SinkContext) -> RowStore:
        node, dsn = context.planned.node, context.config.postgres_dsn
        return ViewWriter(dsn, node.app_name, node.name, context.planned.output_schema, node.key, node.order_by)

    def place(self, context: SinkContext) -> str:
        return f"the ledger of view {context.planned.node.table_name} in {shown(context.config.postgres_dsn)}"
