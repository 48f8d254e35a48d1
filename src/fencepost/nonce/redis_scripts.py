"""Define the Lua scripts of `redis_full`; each runs atomically.

Five keys per signer, always in this order: `meta` (a hash: next, revision, floor, epoch), `slots` (nonce to its state),
`released` (by nonce), `held` (by the end of the hold, in ms of Redis's clock), `dirty` (nonces whose state is not in PostgreSQL
yet). A slot is `revision|STATE|token|end in ms|hash`.

A script takes at most `MAX_NONCES_PER_CALL` nonces: the arguments of one command must fit Lua's stack. Lists are passed as one text
separated by spaces, because parsing a reply value by value costs the client more than Redis.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha1
from typing import Any

from fencepost.domain.ids import Signer

MAX_CACHED_SIGNERS = 4096


@dataclass(frozen=True, slots=True)
class Script:
    text: str
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sha", sha1(self.text.encode(), usedforsecurity=False).hexdigest())

    def call(self, signer: Signer, *arguments: object) -> tuple[Any, ...]:
        return ("EVALSHA", self.sha, *_keys_of(signer), *arguments)


@lru_cache(MAX_CACHED_SIGNERS)
def _keys_of(signer: Signer) -> tuple[Any, ...]:
    """Return the number of keys and the keys, with a hash tag, so that a cluster stores them together."""
    names = ("meta", "slots", "released", "held", "dirty")
    return (len(names), *[f"fencepost:nonce:{{{signer}}}:{name}" for name in names])


def meta_key(signer: Signer) -> str:
    return str(_keys_of(signer)[1])


def slots_key(signer: Signer) -> str:
    return str(_keys_of(signer)[2])


_NOW = "local t = redis.call('TIME') local now = t[1] * 1000 + math.floor(t[2] / 1000)\n"

# count, token, hold in ms, epoch → "nonce nonce …"; "" if nothing is loaded, or another epoch.
ALLOCATE = Script(
    _NOW
    + """
local known = redis.call('HMGET', KEYS[1], 'next', 'floor', 'epoch')
if known[3] ~= ARGV[4] then return '' end
local count = tonumber(ARGV[1])
local ends = string.format('%.0f', now + ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', '(' .. known[2])
local nonces = {}
for i, value in ipairs(redis.call('ZPOPMIN', KEYS[3], count)) do
  if i % 2 == 1 then nonces[#nonces + 1] = value end
end
local fresh = count - #nonces
if fresh > 0 then
  local past = redis.call('HINCRBY', KEYS[1], 'next', fresh)
  for nonce = past - fresh, past - 1 do nonces[#nonces + 1] = string.format('%.0f', nonce) end
end
local revision = redis.call('HINCRBY', KEYS[1], 'revision', 1)
local slot = string.format('%.0f', revision) .. '|HELD|' .. ARGV[2] .. '|' .. ends .. '|'
local slots, times = {}, {}
for i, nonce in ipairs(nonces) do
  slots[2 * i - 1], slots[2 * i] = nonce, slot
  times[2 * i - 1], times[2 * i] = ends, nonce
end
redis.call('HSET', KEYS[2], unpack(slots))
redis.call('ZADD', KEYS[4], unpack(times))
redis.call('SADD', KEYS[5], unpack(nonces))
return table.concat(nonces, ' ')
"""
)

# nonce, expected slot, new state, rest of the new slot → 1 if the slot was as expected.
CHANGE = Script("""
if redis.call('HGET', KEYS[2], ARGV[1]) ~= ARGV[2] then return 0 end
local revision = string.format('%.0f', redis.call('HINCRBY', KEYS[1], 'revision', 1))
redis.call('HSET', KEYS[2], ARGV[1], revision .. '|' .. ARGV[3] .. '|' .. ARGV[4])
redis.call('ZREM', KEYS[4], ARGV[1])
if ARGV[3] == 'RELEASED' then redis.call('ZADD', KEYS[3], ARGV[1], ARGV[1]) end
redis.call('SADD', KEYS[5], ARGV[1])
return 1
""")

# the chain's nonce, limit → number of released nonces.
RECLAIM = Script(
    _NOW
    + """
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], 'floor', ARGV[1])
local released = 0
for _, nonce in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', string.format('%.0f', now), 'LIMIT', 0, ARGV[2])) do
  local slot = redis.call('HGET', KEYS[2], nonce)
  if slot and tonumber(nonce) >= tonumber(ARGV[1]) then
    local revision = string.format('%.0f', redis.call('HINCRBY', KEYS[1], 'revision', 1))
    redis.call('HSET', KEYS[2], nonce, (string.gsub(slot, '^%d+|HELD|', revision .. '|RELEASED|')))
    redis.call('ZREM', KEYS[4], nonce)
    redis.call('ZADD', KEYS[3], nonce, nonce)
    redis.call('SADD', KEYS[5], nonce)
    released = released + 1
  end
end
return released
"""
)

# limit → "Redis's time in ms", or "time nonce slot nonce slot …"; a slot that no longer exists is "-".
PICK = Script(
    _NOW
    + """
local picked = {string.format('%.0f', now)}
local nonces = redis.call('SRANDMEMBER', KEYS[5], ARGV[1])
if #nonces == 0 then return picked[1] end
for i, slot in ipairs(redis.call('HMGET', KEYS[2], unpack(nonces))) do
  picked[2 * i] = nonces[i]
  picked[2 * i + 1] = slot or '-'
end
return table.concat(picked, ' ')
"""
)

# "time nonce slot nonce slot …" as picked and copied to PostgreSQL; consumed slots are deleted here.
SETTLE = Script("""
local nonces, slots = {}, {}
for nonce, slot in string.gmatch(ARGV[1], ' (%d+) ([^ ]+)') do
  nonces[#nonces + 1], slots[#slots + 1] = nonce, slot
end
local settled, forgotten = {}, {}
for i, slot in ipairs(redis.call('HMGET', KEYS[2], unpack(nonces))) do
  if (slot or '-') == slots[i] then
    settled[#settled + 1] = nonces[i]
    if slot and string.find(slot, '|CONSUMED|', 1, true) then forgotten[#forgotten + 1] = nonces[i] end
  end
end
if #settled > 0 then redis.call('SREM', KEYS[5], unpack(settled)) end
if #forgotten > 0 then redis.call('HDEL', KEYS[2], unpack(forgotten)) end
return #settled
""")

# expected revision ('' for none), next, revision, floor, epoch, then nonce, STATE, token, ms left, hash …
# → 1 if the revision was as expected.
RELOAD = Script(
    _NOW
    + """
if (redis.call('HGET', KEYS[1], 'revision') or '') ~= ARGV[1] or redis.call('SCARD', KEYS[5]) > 0 then return 0 end
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3], KEYS[4])
redis.call('HSET', KEYS[1], 'next', ARGV[2], 'revision', ARGV[3], 'floor', ARGV[4], 'epoch', ARGV[5])
for i = 6, #ARGV, 5 do
  local nonce, state = ARGV[i], ARGV[i + 1]
  local ends = string.format('%.0f', now + ARGV[i + 3])
  redis.call('HSET', KEYS[2], nonce, ARGV[3] .. '|' .. state .. '|' .. ARGV[i + 2] .. '|' .. ends .. '|' .. ARGV[i + 4])
  if state == 'HELD' then redis.call('ZADD', KEYS[4], ends, nonce) end
  if state == 'RELEASED' then redis.call('ZADD', KEYS[3], nonce, nonce) end
end
return 1
"""
)

ALL = (ALLOCATE, CHANGE, RECLAIM, PICK, SETTLE, RELOAD)
