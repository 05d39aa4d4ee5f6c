"""How often a tenant may make HTTP calls, over all workers: a token bucket in Redis, one script.

A bucket holds up to `burst` tokens and gains `rate` of them a second; a call takes one. It is kept as
two numbers, how full it was and when, by the server's clock, and forgotten once it would be full. A
server that cannot be asked refuses: a limit that holds only in fine weather is none.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import redis

from sandbox import wire
from sandbox.egress.codes import Code
from sandbox.line import Script

if TYPE_CHECKING:
    from sandbox.egress.policy import Plan

# KEYS bucket. ARGV tokens a second, most tokens. '1' if one was taken.
TAKE = """
local rate, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local was = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens = math.min(most, tonumber(was[1] or most) + math.max(0, now - tonumber(was[2] or now)) * rate)
local taken = tokens >= 1
if taken then tokens = tokens - 1 end
redis.call('HSET', KEYS[1], 'tokens', string.format('%.6f', tokens), 'at', string.format('%.6f', now))
redis.call('PEXPIRE', KEYS[1], math.ceil((most - tokens) / rate * 1000) + 1000)
return taken and 1 or 0
"""


class Rates:
    """The buckets. Safe to use from many threads."""

    def __init__(self, client: redis.Redis, plan: Plan) -> None:
        self._rate = plan.rate
        self._burst = max(1, plan.burst or math.ceil(plan.rate))
        self._take = Script(client, TAKE)

    def admit(self, tenant: str) -> str:
        """'' where this call may be made, else `code: text`."""
        if not self._rate:
            return ""
        try:
            taken = self._take([wire.rate_key(tenant)], [self._rate, self._burst])
        except redis.RedisError as error:
            return f"{Code.INTERNAL_ERROR}: the tenant's rate cannot be asked for: {type(error).__name__}"
        if taken:
            return ""
        return f"{Code.BUDGET_EXCEEDED}: more than {self._rate:g} HTTP calls a second (HOOKPOOL_EGRESS_RATE)"
