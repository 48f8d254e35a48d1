-- The event log: the whole journal in the order in which no row appears late, and the end of the part that was removed.

-- Serves every reader of the journal's order, completions too: a second, partial index would only add to the cost of a commit.
CREATE INDEX journal_batch_place ON journal_batch (epoch, xid, id);
DROP INDEX journal_batch_ended;

-- One row: the last journal entry that was removed. A reader that has not read up to here has missed events.
CREATE TABLE event_floor (
  is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only),
  epoch   bigint  NOT NULL,
  xid     xid8    NOT NULL,
  id      bigint  NOT NULL
);
