-- Find the cancel that stands for a transaction, so that another request for it does not store a second one.

CREATE INDEX lane_command_cancel ON lane_command (tx_id) WHERE command = 'cancel' AND applied;
