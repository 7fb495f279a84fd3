"""PostgreSQL: the embedded server, views that are written exactly once, and reading your own writes."""

from headrace.tables.connection import check_postgres, shown
from headrace.tables.ledger import Coverage
from headrace.tables.reading import Receipt, ViewReader
from headrace.tables.server import EmbeddedPostgres
from headrace.tables.views import ViewWriter

__all__ = ["Coverage", "EmbeddedPostgres", "Receipt", "ViewReader", "ViewWriter", "check_postgres", "shown"]
