-- Where the price of an attempt came from: request, node, gas_station, cache, fixed or handler; '' for older rows.
ALTER TABLE tx_attempt ADD COLUMN fee_source text NOT NULL DEFAULT '';
