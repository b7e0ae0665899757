"""A run's last step: small files of a table are merged."""

from __future__ import annotations

from runtime.logging import get_logger
from spark_jobs.tables.contract import Table
from spark_jobs.tables.errors import StaleWriterError, WrongTableError
from spark_jobs.tables.progress import Progress
from spark_jobs.tables.tidying.decide import FileFacts, to_rewrite

_log = get_logger(__name__)


def tidy(table: Table, progress: Progress) -> None:
    """Rewrite files that are small, or have many dead rows, in a commit of its own, which leaves all rows as they are.
    Tables of logs have no dead rows of ours.

    Raises the errors of the table's commit, but for one: if another writer is quicker, the next run tries again. If
    another program wrote what keeps files from being written again, that is told.
    """
    try:
        files = table.keyed_files()
    except WrongTableError as error:
        _log.warning("small files are not merged", table=table.name, reason=error.message, remedy=error.remedy)
        return
    if files is None:
        return
    facts = [
        FileFacts(file.partition, file.first_offset, file.rows, file.dead, file.size_bytes, file.section)
        for file in files.files
        if file.partition is not None
    ]
    groups = to_rewrite(facts)
    if not groups:
        return
    ours = [file for file in files.files if file.partition is not None]
    try:
        table.rewrite([[ours[number] for number in group] for group in groups], progress)
    except StaleWriterError as error:
        _log.info("files were not rewritten: another writer was quicker", table=table.name, reason=error.message)
    else:
        _log.debug("files rewritten", table=table.name, files=sum(map(len, groups)), into=len(groups))
