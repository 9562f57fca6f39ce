"""Keys of a federation: a certificate authority for development, the server's certificate, and a key for each site.

ca.key, ca.crt            stay where they were made; ca.key signs whatever comes later
server/                   goes to the server: its key and certificate, and the sites' public keys
sites/NAME/               goes to that site: its own key, and the certificate by which it knows the server
"""

import datetime
import ipaddress
import os
import re
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from semifed import writing
from semifed.errors import SettingError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def make_keys(folder: Path, hosts: Sequence[str], sites: Sequence[str], days: int = 365) -> list[str]:
    """Make what is missing, and say what to copy where; what is there stays, so sites can be added later."""
    for name in sites:
        check_name(name)
    made = []
    if not (folder / "ca.key").exists():
        _make_authority(folder, days)
        made.append(f"{folder / 'ca.key'}: keep it to yourself; it is needed to add certificates")
    server = folder / "server"
    if not (server / "server.key").exists():
        if not hosts:
            raise SettingError("--host: say the name or address by which sites reach the server")
        make_server(folder, server, hosts, days)
    made.append(f"{server}: copy to the server, for `semifed serve --keys {server}`")
    for name in sites:
        own = folder / "sites" / name
        if (own / "site.key").exists():
            raise SettingError(f"--site {name}: has a key already in {own}; remove it first to make another")
        key = new_key()
        write_private(own / "site.key", key)
        _write(own / "ca.crt", (folder / "ca.crt").read_bytes())
        _write(server / "sites" / f"{name}.pub", public_bytes(key))
        made.append(f"{own}: copy to the site {name}, for `semifed join --site {name} --keys {own}`")
    return made


def check_name(name: str) -> None:
    """Refuse a site's name that could be a path or hard to read."""
    if not _NAME.fullmatch(name):
        raise SettingError(f"--site {name[:60]!r}: a name has letters, digits, '.', '_' and '-', and begins with one")


def site_keys(folder: Path) -> dict[str, bytes]:
    """The public keys of the sites that a server knows, by name."""
    found = {path.stem: path.read_bytes() for path in sorted((folder / "sites").glob("*.pub"))}
    if not found:
        raise SettingError(f"{folder / 'sites'}: there is no site's key; make some with `semifed keys`")
    for name in found:
        check_name(name)
    return found


def make_server(authority: Path, folder: Path, hosts: Sequence[str], days: int) -> None:
    """A server's key and certificate under these names, signed by the authority in a folder."""
    ca_key, ca = load_key(authority / "ca.key"), load_certificate(authority / "ca.crt")
    key = new_key()
    write_private(folder / "server.key", key)
    _write(folder / "server.crt", _pem(_certificate(key, ca_key, hosts[0], days, issuer=ca, hosts=hosts)))
    _write(folder / "ca.crt", (authority / "ca.crt").read_bytes())


def _make_authority(folder: Path, days: int) -> None:
    key = new_key()
    write_private(folder / "ca.key", key)
    _write(folder / "ca.crt", _pem(_certificate(key, key, "Semifed development CA", days)))


def new_key() -> "ec.EllipticCurvePrivateKey":
    """A private key on the curve that Flower takes for nodes."""
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    return ec.generate_private_key(ec.SECP384R1())


def trusted(authority: Path) -> ssl.SSLContext:
    """TLS that trusts servers of this authority alone."""
    try:
        return ssl.create_default_context(cafile=str(authority))
    except (OSError, ssl.SSLError) as error:
        raise SettingError(f"{authority}: cannot be read as a certificate: {error}; copy it from the server") from None


def load_key(path: Path) -> "ec.EllipticCurvePrivateKey":
    """The private key in a file that nobody else may read."""
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    try:
        if os.name == "posix" and path.stat().st_mode & 0o077:
            raise SettingError(f"{path}: others may read this private key; run chmod 600 {path}")
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except FileNotFoundError:
        raise SettingError(
            f"{path}: there is no such key; make it with `semifed keys`, or say where with --keys"
        ) from None
    except (OSError, ValueError, TypeError) as error:
        raise SettingError(f"{path}: is not a private key of `semifed keys`: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise SettingError(f"{path}: is not a private key of `semifed keys`")
    return key


def load_certificate(path: Path) -> "x509.Certificate":
    """The certificate in a file."""
    from cryptography import x509  # noqa: PLC0415

    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SettingError(f"{path}: is not a certificate: {error}; make it with `semifed keys`") from None


def public_bytes(key: "ec.EllipticCurvePrivateKey") -> bytes:
    """The public key as Flower knows nodes by it."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat  # noqa: PLC0415

    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def write_private(path: Path, key: "ec.EllipticCurvePrivateKey") -> None:
    """Write a private key, from its first byte on for the owner alone."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat  # noqa: PLC0415

    _make_folder(path.parent)
    data = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise SettingError(f"{folder}: cannot be made: {error.strerror}") from None


def _write(path: Path, data: bytes) -> None:
    _make_folder(path.parent)
    writing.write_whole(path, data)


def _pem(certificate: "x509.Certificate") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415

    return certificate.public_bytes(Encoding.PEM)


def _certificate(
    key: "ec.EllipticCurvePrivateKey",
    signer: "ec.EllipticCurvePrivateKey",
    name: str,
    days: int,
    issuer: "x509.Certificate | None" = None,
    hosts: Sequence[str] = (),
) -> "x509.Certificate":
    """A certificate: of an authority if nobody else issues it, else of a server under its names."""
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415

    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name[:64])])
    now = datetime.datetime.now(datetime.UTC)
    begin = min(now, now + datetime.timedelta(days=days)) - datetime.timedelta(days=1)
    authority = issuer is None
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer is not None else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .add_extension(_usage(authority), critical=True)
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_host(one) for one in hosts]), critical=False)
        use = x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH])
        builder = builder.add_extension(use, critical=False)
    return builder.sign(signer, hashes.SHA256())


def _usage(authority: bool) -> "x509.KeyUsage":
    from cryptography import x509  # noqa: PLC0415

    rest = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only")
    off = dict.fromkeys((*rest, "decipher_only"), False)
    return x509.KeyUsage(digital_signature=True, key_cert_sign=authority, crl_sign=authority, **off)


def _host(name: str) -> "x509.GeneralName":
    from cryptography import x509  # noqa: PLC0415

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
