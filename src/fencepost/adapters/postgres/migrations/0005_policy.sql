-- Spending policies of signers, in addition to those of API keys: checked before a request is stored, so before it has a nonce.

CREATE TABLE signer_policy (
  chain_id       bigint      NOT NULL CHECK (chain_id > 0),
  signer         text        NOT NULL CHECK (signer ~ '^0x[0-9a-f]{40}$'),
  receivers      text[],     -- NULL: any
  selectors      text[],     -- NULL: any; '0x' is a plain transfer
  value_wei_max  numeric     CHECK (value_wei_max >= 0),
  daily_wei_max  numeric     CHECK (daily_wei_max >= 0), -- value and gas together
  gas_max        numeric     CHECK (gas_max >= 0),
  fee_cap_max    numeric     CHECK (fee_cap_max >= 0),   -- wei per gas
  updated_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (chain_id, signer)
);

-- How much of its daily budget (UTC) a signer's transactions have reserved or spent; only for signers with a daily limit.
CREATE TABLE signer_spend (
  chain_id   bigint  NOT NULL,
  signer     text    NOT NULL,
  day        date    NOT NULL,
  spent_wei  numeric NOT NULL CHECK (spent_wei >= 0),
  PRIMARY KEY (chain_id, signer, day)
) WITH (fillfactor = 50);

-- A transaction's share of its signer's daily budget: the most that it may cost while it is live, its real cost afterwards.
CREATE TABLE tx_spend (
  tx_id       uuid    PRIMARY KEY,
  chain_id    bigint  NOT NULL,
  signer      text    NOT NULL,
  day         date    NOT NULL, -- the UTC day of its first reservation; the whole amount counts on that day
  value_wei   numeric NOT NULL CHECK (value_wei >= 0),
  wei         numeric NOT NULL CHECK (wei >= 0),
  is_settled  boolean NOT NULL DEFAULT false
);

-- Open reservations. There are few: ended transactions are settled whenever a budget is read or runs out.
CREATE INDEX tx_spend_open ON tx_spend (chain_id, signer) WHERE NOT is_settled;

-- Reserve what a transaction may cost in its signer's daily budget; return whether enough was left. A repeated call with the
-- same or a smaller amount changes nothing; a larger amount reserves the difference. All changes of a signer's budget are
-- serialized, because each first locks the row of its policy. Without a daily limit nothing is reserved.
CREATE FUNCTION spend_reserve(
  of_chain bigint, of_signer text, of_tx uuid, with_value numeric, at_most numeric, unconditionally boolean
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  daily numeric;
  held  tx_spend;
  more  numeric := at_most;
  on_day date := (clock_timestamp() AT TIME ZONE 'UTC')::date;
BEGIN
  SELECT p.daily_wei_max INTO daily FROM signer_policy p
   WHERE p.chain_id = of_chain AND p.signer = of_signer FOR UPDATE;
  IF daily IS NULL THEN
    RETURN true;
  END IF;
  SELECT s.* INTO held FROM tx_spend s WHERE s.tx_id = of_tx;
  IF FOUND THEN
    more := greatest(0, at_most - held.wei);
    on_day := held.day;
  END IF;
  INSERT INTO signer_spend (chain_id, signer, day, spent_wei) VALUES (of_chain, of_signer, on_day, 0)
      ON CONFLICT (chain_id, signer, day) DO NOTHING;
  UPDATE signer_spend s SET spent_wei = s.spent_wei + more
   WHERE s.chain_id = of_chain AND s.signer = of_signer AND s.day = on_day
     AND (more = 0 OR unconditionally OR s.spent_wei + more <= daily);
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  INSERT INTO tx_spend AS s (tx_id, chain_id, signer, day, value_wei, wei)
  VALUES (of_tx, of_chain, of_signer, on_day, with_value, at_most)
      ON CONFLICT (tx_id) DO UPDATE
     SET wei = greatest(s.wei, excluded.wei), value_wei = greatest(s.value_wei, excluded.value_wei), is_settled = false;
  RETURN true;
END $$;

-- Record the cost of a transaction, once; the rest of its reservation returns to its day. NULL: the transaction was never stored.
CREATE FUNCTION spend_settle(of_chain bigint, of_signer text, of_tx uuid, cost numeric) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
  held tx_spend;
BEGIN
  PERFORM 1 FROM signer_policy p WHERE p.chain_id = of_chain AND p.signer = of_signer FOR UPDATE;
  SELECT s.* INTO held FROM tx_spend s
   WHERE s.tx_id = of_tx AND s.chain_id = of_chain AND s.signer = of_signer AND NOT s.is_settled;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  UPDATE signer_spend s SET spent_wei = greatest(0, s.spent_wei - held.wei + coalesce(cost, 0))
   WHERE s.chain_id = of_chain AND s.signer = of_signer AND s.day = held.day;
  IF cost IS NULL THEN
    DELETE FROM tx_spend s WHERE s.tx_id = of_tx;
  ELSE
    UPDATE tx_spend s SET wei = cost, is_settled = true WHERE s.tx_id = of_tx;
  END IF;
  RETURN true;
END $$;
