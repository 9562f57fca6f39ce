"""Addresses of a federation: what is one, what is this machine, and whether a proxy stands in the way."""

import ipaddress
import os
from contextlib import suppress
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from semifed.errors import SettingError


def check_address(server: str) -> None:
    """Refuse what is not HOST:PORT."""
    host, colon, port = server.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise SettingError(f"--server {server}: expected HOST:PORT, such as server.example.org:8443")


def check_insecure(host: str, insecure: bool) -> None:
    """Without TLS nothing leaves this machine."""
    if insecure and not is_loopback(host):
        raise SettingError(f"--insecure: {host} is not this machine; without TLS only a loopback address is allowed")


def host_of(server: str) -> str:
    """The host of HOST:PORT."""
    return server.rpartition(":")[0].strip("[]")


def is_loopback(host: str) -> bool:
    """Whether an address is of this machine alone."""
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def proxy_before(server: str) -> str:
    """The proxy that the environment puts before a server, without a password; empty if there is none.

    None stands before this machine itself.
    """
    proxies = getproxies()
    found = proxies.get("https") or proxies.get("all")
    if not found or is_loopback(host_of(server)) or (os.environ.get("NO_PROXY") and proxy_bypass(server)):
        return ""
    return urlsplit(found if "//" in found else f"//{found}").netloc.rpartition("@")[2]
