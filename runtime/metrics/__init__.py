"""The metrics of a process: the table of all of them, and the parts that it is put together of."""

from runtime.metrics.table import CONTENT_TYPE as CONTENT_TYPE
from runtime.metrics.table import Metrics as Metrics
from runtime.metrics.table import render_metrics_markdown as render_metrics_markdown
