"""Builds the PDCA API over a running engine."""

from switchyard.bootstrap import Engine
from switchyard.entrypoints.http.pdca.api import PdcaApi
from switchyard.entrypoints.http.pdca.calls import Counter
from switchyard.entrypoints.http.pdca.downloads import Downloads
from switchyard.entrypoints.http.pdca.rates import PdcaRates
from switchyard.entrypoints.http.transport.auth import revoked_tokens
from switchyard.entrypoints.http.transport.bad_tokens import BadTokens
from switchyard.entrypoints.http.transport.key_ring import Fetch, KeyRing, file_source, local_source, url_source
from switchyard.entrypoints.http.transport.rs256 import PdcaTokens
from switchyard.settings import Settings, jwt_secret


def build_pdca(settings: Settings, engine: Engine, bad_tokens: BadTokens) -> PdcaApi:
    """Build the API; its keys are read with the first token."""
    api = settings.pdca_api
    ring = KeyRing(_source(settings), clock=engine.clock, age_max=api.jwks_age_max)
    return PdcaApi(
        engine.pdca,
        counter=Counter(
            tokens=PdcaTokens(
                ring,
                clock=engine.wall_clock,
                issuer=api.issuer,
                revoked=revoked_tokens(settings, engine.wall_clock, engine.metrics),
            ),
            rates=PdcaRates(engine.caches.pdca_rates),
            bad_tokens=bad_tokens,
            clock=engine.clock,
            metrics=engine.metrics.pdca,
        ),
        downloads=Downloads(jwt_secret(settings), clock=engine.wall_clock, ttl=api.download_ttl),
        clock=engine.clock,
        randomness=engine.randomness,
    )


def _source(settings: Settings) -> Fetch:
    if settings.pdca_api.jwks_url is not None:
        return url_source(settings.pdca_api.jwks_url)
    if settings.pdca_api.jwks_file is not None:
        return file_source(settings.pdca_api.jwks_file)
    return local_source(settings.data_dir)
