"""Authentication: API keys, tokens and their issuers, and when they were last used."""

import logging
from dataclasses import dataclass

import anyio

from app.auth.api_keys import ApiKeys, KeyMaker
from app.auth.authenticator import Authenticator, Storage
from app.auth.authorization.access_tokens import OwnTokens, SigningKeys
from app.auth.credential_uses import CredentialUses
from app.auth.issuer_check import IssuerCheck
from app.auth.jwks import KeySets
from app.auth.outbound import Outbound
from app.auth.outbound_proxy import NodeProxy
from app.auth.sealing import Sealer
from app.auth.tokens import Tokens
from app.errors import GatewayError
from app.limits.caller_rates import RateLimiter
from app.node.parts.opening import Opening
from app.node.parts.records import Records
from app.sessions.loop_pause import StandstillDetector

FLUSH_EVERY_S = 60.0  # between two writes of last_used_at

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Credentials:
    """`outbound` fetches from issuers, for `authenticator` and `issuer_check`, and from clients (`client_keys`)."""

    key_maker: KeyMaker
    sealer: Sealer
    outbound: Outbound
    issuer_check: IssuerCheck
    authenticator: Authenticator
    keys: ApiKeys
    tokens: Tokens
    signing: SigningKeys
    own_tokens: OwnTokens
    client_keys: KeySets


async def open_credentials(opening: Opening, records: Records) -> Credentials:
    """last_used_at of keys is saved once more when the node ends."""
    settings, metrics, stack = opening.settings, opening.metrics, opening.stack
    key_maker, sealer = KeyMaker(settings.secret_key), Sealer(settings.secret_key)
    proxy = NodeProxy.of(settings.outbound_proxy, settings.outbound_no_proxy)
    outbound = Outbound(settings.outbound_allow, proxy=proxy, ca=settings.outbound_ca)
    key_sets = await stack.enter_async_context(KeySets(outbound.get))
    client_keys = await stack.enter_async_context(KeySets(outbound.get))
    tokens = Tokens(records.issuers, sealer, key_sets)
    if await records.issuers.are_any():
        tokens.get_ready()
    keys, signing = ApiKeys(records.keys, key_maker), SigningKeys(settings.secret_key)
    own_tokens = OwnTokens(signing, records.connections, keys, tokens)
    authenticator = Authenticator(
        keys,
        metrics.auth_failures,
        tokens=tokens,
        own=own_tokens,
        tries=RateLimiter("bad_credentials", metrics.rate_limited),
        storage=Storage(records.watch.is_away, records.trail.age_s),
        switches=records.switches,
        uses=CredentialUses(metrics.new_addresses),
        has_stood_still=StandstillDetector().has_stood_still,
    )
    stack.push_async_callback(_flush_once, authenticator)
    issuer_check = IssuerCheck(tokens, outbound.get, records.switches.off)
    own = keys, tokens, signing, own_tokens, client_keys
    return Credentials(key_maker, sealer, outbound, issuer_check, authenticator, *own)


async def flush_for_ever(authenticator: Authenticator) -> None:
    """Saves last_used_at of keys every FLUSH_EVERY_S."""
    while True:
        await anyio.sleep(FLUSH_EVERY_S)
        await _flush_once(authenticator)


async def _flush_once(authenticator: Authenticator) -> None:
    try:
        await authenticator.flush_last_used()
    except GatewayError:
        log.warning("Could not save last_used_at of API keys; will retry")
