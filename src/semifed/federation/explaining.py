"""What a failed call to the server means in plain words, and whether trying again can help."""

from typing import NamedTuple

from semifed.federation.addresses import host_of, proxy_before

BUSY_KEY = 75.0
"""Seconds for which a key may be refused because a crashed process still holds its place."""

_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "http request")
_NO_NAME = ("Name or service not known", "nodename nor servname", "name resolution")


class Meaning(NamedTuple):
    """What to say, and whether to try again."""

    text: str
    again: bool


def explain(error: Exception, server: str) -> Meaning:
    """What an error of a call means."""
    status = _status(error)
    return _unreached(error, server) if status is None or status in (502, 503, 504) else _refused(error, server, status)


def is_refusal(error: Exception) -> bool:
    """Whether the server answered, and said no."""
    status = _status(error)
    return status is not None and status not in (502, 503, 504)


def _status(error: Exception) -> int | None:
    found = getattr(getattr(error, "response", None), "status_code", None)
    return found if isinstance(found, int) else None


def _unreached(error: Exception, server: str) -> Meaning:
    """Nobody answered, or not the one who should."""
    text, proxy = " ".join(dict.fromkeys(str(one) for one in (error, error.__cause__) if one)), proxy_before(server)
    around = f"ask for access to {server}, or set NO_PROXY={host_of(server)}"
    if type(error).__name__ == "ProxyError":
        again = text.startswith("5")  # it may be the server behind it that is away
        return Meaning(f"{server}: the proxy {proxy} does not let this site through ({text[:80]}); {around}", again)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        expired = "has expired" in text
        why = "has expired" if expired else "is not one this site trusts (ca.crt), or is of another host"
        perhaps = f"; it may be that of the proxy {proxy}: {around}" if proxy else ""
        return Meaning(
            f"{server}: the server's certificate {why}; get the right one with `semifed keys`{perhaps}", False
        )
    if any(word in text for word in _NO_TLS):
        return Meaning(f"{server}: does not speak TLS; is it a semifed server, or one with --insecure?", False)
    if any(word in text for word in _NO_NAME):
        later = "Temporary" in text  # nobody could be asked for the name, which may be the line
        return Meaning(f"--server {server}: there is no such host{', or no line' if later else ''}", later)
    way = f" by way of the proxy {proxy}" if proxy else ""
    return Meaning(f"{server}: cannot be reached{way} ({type(error).__name__}: {text[:120]})", True)


def _refused(error: Exception, server: str, status: int) -> Meaning:
    """The server answered, and said no."""
    if status == 413:
        return Meaning(f"{server}: this site's message is over the server's limit (federation.limit)", False)
    if status == 401:
        return Meaning(f"{server}: refuses the signature of this site's key", True)
    found = " ".join(str(getattr(getattr(error, "response", None), "text", "")).split())[:160]
    known = status in (400, 403, 409, 412) or "2004" in found or "activat" in found.lower()
    why = "does not know this site's key, or another process still holds its place" if known else f"says {status}"
    return Meaning(f"{server}: {why} ({found})", known)
