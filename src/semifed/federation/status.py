"""`semifed status`: how a federation goes, asked of its server by whoever holds one of its keys."""

import base64
import json
from pathlib import Path
from typing import Any

from semifed.errors import RunError, SettingError
from semifed.federation import keys
from semifed.federation.addresses import check_address, check_insecure, host_of, is_loopback
from semifed.federation.explaining import explain
from semifed.federation.front import STATUS
from semifed.federation.serving import need_flower


def status(server: str, keys_folder: Path, insecure: bool = False) -> dict[str, Any]:
    """Sites, rounds, stragglers, refused updates and bytes."""
    need_flower()
    import httpx  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    check_address(server)
    check_insecure(host_of(server), insecure)
    at_server = (keys_folder / "server.key").exists()
    key = keys.load_key(keys_folder / ("server.key" if at_server else "site.key"))
    name = "@server" if at_server else keys_folder.resolve().name
    verify = False if insecure else keys.trusted(keys_folder / "ca.crt")
    try:
        with httpx.Client(verify=verify, timeout=30, trust_env=not is_loopback(host_of(server))) as client:
            url = f"{'http' if insecure else 'https'}://{server}{STATUS}"
            challenge = str(client.get(url).json()["challenge"])
            signature = key.sign(f"semifed status {challenge}".encode(), ec.ECDSA(hashes.SHA256()))
            sign = base64.b64encode(signature).decode()
            headers = {"semifed-site": name, "semifed-challenge": challenge, "semifed-signature": sign}
            answer = client.get(url, headers=headers)
    except (httpx.HTTPError, OSError) as error:
        raise RunError(explain(error, server).text) from None
    except (ValueError, KeyError, TypeError):
        raise RunError(f"{server}: is not a semifed server") from None
    if answer.status_code == 403:
        raise SettingError(f"--keys {keys_folder}: the server does not know a site {name} with this key")
    found: dict[str, Any] = json.loads(answer.content)
    return found
