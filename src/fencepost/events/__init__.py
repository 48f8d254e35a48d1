"""Read what happened to transactions and signers, in one order that never skips an entry.

`log` defines the port that reads the journal, `types` maps journal entries to events, `reader` filters them for a caller
and waits for new ones, `batches` delivers a subscription in acknowledged batches, `blocks`
writes events about stable blocks, `retention` removes old events.
"""
