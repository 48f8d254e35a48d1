"""Ask a gas station, a service over HTTP that suggests prices, and read its JSON by pointers (RFC 6901).

The service is not trusted: time and size of a response are bounded, redirects are not followed, and a value that is not a
price is an error. A quote serves all signers of the chain for `cache_s`; after a failure the service is not asked again for
as long. Messages never contain the URL or the headers, which may have credentials.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from http import HTTPStatus
from typing import Any, Final

import aiohttp
import msgspec

from fencepost import bounded_json
from fencepost.adapters.evm.fee_quotes import FeeQuotes
from fencepost.domain.fees import FeeQuote, FeeTier
from fencepost.domain.struct import Struct
from fencepost.domain.transaction import Fees
from fencepost.errors import FeeSourceError

SOURCE: Final = "gas_station"
MAX_BODY_BYTES: Final = 256 * 1024
MAX_PRICE_WEI: Final = 10**24
_MAX_DIGITS: Final = 40
_UNITS: Final = {"wei": 1, "gwei": 10**9}
_decode: Final = msgspec.json.Decoder(float_hook=Decimal).decode


class Pointers(Struct, frozen=True):
    """JSON pointers to the prices of one tier; without `tip` the price is one, as before EIP-1559."""

    fee_cap: str
    tip: str = ""


class StationSettings(Struct, frozen=True):
    """How to ask a gas station. Tiers without pointers get the prices of the nearest tier below, or of `normal`."""

    url: str
    tiers: Mapping[FeeTier, Pointers]
    headers: tuple[tuple[str, str], ...] = ()
    unit: str = "gwei"
    cache_s: float = 5.0
    timeout_s: float = 2.0


class HttpGasStation:
    """A gas station over HTTP; `aclose` closes its connections."""

    def __init__(self, settings: StationSettings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._quotes = FeeQuotes(self._ask, clock, settings.cache_s)
        self._session: aiohttp.ClientSession | None = None
        self._failed: tuple[float, str] | None = None  # until when it is not asked again, and why

    async def quote(self) -> FeeQuote:
        """Return what it suggests now. Raises `FeeSourceError`."""
        if self._failed is not None and self._clock() < self._failed[0]:
            raise FeeSourceError(self._failed[1])
        return await self._quotes.now()

    async def aclose(self) -> None:
        await self._quotes.aclose()
        if self._session is not None:
            await self._session.close()

    async def _ask(self) -> FeeQuote:
        try:
            quoted = read_quote(await self._fetch(), self._settings)
        except FeeSourceError as error:
            self._failed = (self._clock() + self._settings.cache_s, str(error))
            raise
        self._failed = None
        return quoted

    async def _fetch(self) -> bytes:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=self._settings.timeout_s),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        try:
            async with self._session.get(
                self._settings.url, headers=dict(self._settings.headers), allow_redirects=False
            ) as response:
                if response.status != HTTPStatus.OK:
                    raise FeeSourceError(f"the gas station answered HTTP {response.status}")
                body = bytearray()
                async for chunk in response.content.iter_chunked(16 * 1024):
                    body += chunk
                    if len(body) > MAX_BODY_BYTES:
                        raise FeeSourceError(
                            f"the gas station's answer is larger than {MAX_BODY_BYTES} bytes"
                        )
                return bytes(body)
        except TimeoutError:
            raise FeeSourceError(
                f"the gas station did not answer within {self._settings.timeout_s:g} s"
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise FeeSourceError(f"the gas station can't be reached: {type(error).__name__}") from None


def read_quote(body: bytes, settings: StationSettings) -> FeeQuote:
    """Read the prices of all tiers from a response. Raises `FeeSourceError`."""
    try:
        document = bounded_json.decode(body, _decode)
    except (ValueError, msgspec.DecodeError):
        raise FeeSourceError("the gas station's answer is not JSON") from None
    unit_wei = _UNITS[settings.unit]
    found = {tier: _fees(document, pointers, unit_wei) for tier, pointers in settings.tiers.items()}
    normal = found[FeeTier.NORMAL]
    fast = found.get(FeeTier.FAST, normal)
    return FeeQuote(
        found.get(FeeTier.SLOW, normal), normal, fast, found.get(FeeTier.URGENT, fast), source=SOURCE
    )


def _fees(document: Any, pointers: Pointers, unit_wei: int) -> Fees:
    fee_cap_wei = _price_wei(_value_at(document, pointers.fee_cap), pointers.fee_cap, unit_wei)
    if not pointers.tip:
        return Fees(fee_cap_wei=fee_cap_wei, tip_wei=fee_cap_wei)
    tip_wei = _price_wei(_value_at(document, pointers.tip), pointers.tip, unit_wei)
    return Fees(fee_cap_wei=fee_cap_wei, tip_wei=min(tip_wei, fee_cap_wei))


def _value_at(document: Any, pointer: str) -> Any:
    value = document
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isascii() and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            raise FeeSourceError(f"the gas station's answer has nothing at {pointer}")
    return value


def _price_wei(value: Any, pointer: str, unit_wei: int) -> int:
    """Return a price, rounded up to a wei: a number, a decimal text, or a hexadecimal number of wei."""
    number: Decimal | None = None
    if isinstance(value, str) and len(value) <= _MAX_DIGITS:
        try:
            number = Decimal(int(value, 16)) / unit_wei if value[:2] == "0x" else Decimal(value)
        except (ValueError, InvalidOperation):
            number = None
    elif isinstance(value, int | Decimal) and not isinstance(value, bool):
        number = Decimal(value)
    if number is None or not number.is_finite() or not 0 < number <= MAX_PRICE_WEI // unit_wei:
        raise FeeSourceError(f"the gas station's answer has no price at {pointer}")
    return int((number * unit_wei).to_integral_value(ROUND_CEILING))
