"""Certificates for development and tests: an authority of one's own, and what it vouches for.

For production use the authority you have: what ports are given are plain PEM files, whoever made them.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from waltz_ray.errors import InvalidInput
from waltz_ray.small_files import alone_in, sync_directory, sync_file

__all__ = ["AUTHORITY", "SERVER", "Made", "good_until", "make_certificates"]

AUTHORITY, SERVER = "authority", "server"
_LONGEST_NAME = 64  # of a certificate's subject
_SLACK = datetime.timedelta(hours=1)  # clocks differ


@dataclass(frozen=True)
class Made:
    """The files of one certificate, and whether they were made now."""

    name: str
    certificate: Path
    key: Path
    new: bool


def make_certificates(directory: Path, hosts: Sequence[str], clients: Sequence[str], days: int) -> list[Made]:
    """Have ``authority``, ``server`` (for ``hosts``) and a certificate for each of ``clients``, which is its subject's
    name, in ``directory``, each as NAME.pem and NAME.key. What is there already stays.

    InvalidInput for a name that cannot be a file's or a subject's, a directory that cannot be written, or files there
    that are no authority's.
    """
    for name in (*hosts, *clients):
        if not name or len(name) > _LONGEST_NAME or not all(c.isalnum() or c in "-_.:" for c in name):
            raise InvalidInput(
                f"{name!r} cannot be in a certificate: letters, digits, '-', '_', '.' and ':', at most 64"
            )
    names = [_general_name(host) for host in hosts]
    if reserved := {AUTHORITY, SERVER} & set(clients):
        raise InvalidInput(f"a client cannot be called {sorted(reserved)[0]!r}: that is the name of other files there")
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with alone_in(directory):
            authority = _Authority(directory, days)
            made = [authority.made]
            made.append(authority.vouch(SERVER, "server", ExtendedKeyUsageOID.SERVER_AUTH, names))
            made += [authority.vouch(name, name, ExtendedKeyUsageOID.CLIENT_AUTH, []) for name in clients]
    except OSError as error:
        raise InvalidInput(f"no certificates can be made in {directory}: {error.strerror}") from error
    return made


def good_until(path: str) -> datetime.datetime:
    """When the first certificate of a PEM file, which is a port's own, ends. OSError, ValueError: there is none."""
    return x509.load_pem_x509_certificate(Path(path).read_bytes()).not_valid_after_utc


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise InvalidInput(f"{host!r} cannot be a server's name: {error}") from error


class _Authority:
    """The one of the directory, made if there is none."""

    def __init__(self, directory: Path, days: int) -> None:
        self._directory, self._days = directory, days
        path, key_path = directory / f"{AUTHORITY}.pem", directory / f"{AUTHORITY}.key"
        there = _are_there(path, key_path)
        if there:
            self._load(path, key_path)
        else:
            self._key = ec.generate_private_key(ec.SECP256R1())
            self._name = _subject("waltz development authority")
            extensions: list[tuple[x509.ExtensionType, bool]] = [
                (x509.BasicConstraints(ca=True, path_length=0), True),
                (_usage(signs_certificates=True), True),
            ]
            _write(path, key_path, self._sign(self._name, self._key, extensions), self._key)
        self.made = Made(AUTHORITY, path, key_path, not there)

    def _load(self, path: Path, key_path: Path) -> None:
        try:
            key = serialization.load_pem_private_key(key_path.read_bytes(), None)
            certificate = x509.load_pem_x509_certificate(path.read_bytes())
        except ValueError as error:
            raise InvalidInput(f"{path} and {key_path} hold no certificate and its key; move both away") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise InvalidInput(f"{key_path} is not the key of {path}; move both away")
        self._key, self._name = key, certificate.subject

    def vouch(self, name: str, subject: str, purpose: x509.ObjectIdentifier, names: list[x509.GeneralName]) -> Made:
        """A certificate for ``purpose``, made if it is not there."""
        path, key_path = self._directory / f"{name}.pem", self._directory / f"{name}.key"
        if _are_there(path, key_path):
            return Made(name, path, key_path, new=False)
        key = ec.generate_private_key(ec.SECP256R1())
        extensions: list[tuple[x509.ExtensionType, bool]] = [
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (_usage(signs_certificates=False), True),
            (x509.ExtendedKeyUsage([purpose]), False),
        ]
        if names:
            extensions.append((x509.SubjectAlternativeName(names), False))
        _write(path, key_path, self._sign(_subject(subject), key, extensions), key)
        return Made(name, path, key_path, new=True)

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        extensions: Sequence[tuple[x509.ExtensionType, bool]],
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.timezone.utc)
        own, its = self._key.public_key(), key.public_key()
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(its)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _SLACK)
            .not_valid_after(now + datetime.timedelta(days=self._days))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(its), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(own), critical=False)
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        return builder.sign(self._key, hashes.SHA256())


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _new(path: Path) -> Path:
    """Where a certificate is before its key is there."""
    return path.with_name(f"{path.name}.new")


def _are_there(path: Path, key_path: Path) -> bool:
    """Both, of which a kill may have left the certificate without its name: it is given that."""
    if key_path.exists() and not os.path.lexists(path) and _new(path).exists():
        try:
            key = serialization.load_pem_private_key(key_path.read_bytes(), None)
            its = x509.load_pem_x509_certificate(_new(path).read_bytes()).public_key()
        except (ValueError, TypeError):  # somebody's, which may be encrypted
            return False
        if key.public_key() == its:
            _new(path).rename(path)
            sync_directory(path.parent)
    return path.exists() and key_path.exists()


def _write(path: Path, key_path: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    """Both, durably; only its owner can read the key. InvalidInput if one of them is there: it may be the only one of
    its kind.

    A kill between the two leaves the key, and the certificate without its name (``_are_there``)."""
    for there, other in ((path, key_path), (key_path, path)):
        if os.path.lexists(there):
            raise InvalidInput(f"{there} is there and {other} is not: put that beside it, or move {there} away")
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    new = _new(path)
    with open(new, "wb") as file:
        file.write(certificate.public_bytes(serialization.Encoding.PEM))
        sync_file(file)  # what is there is nobody's to replace: an empty file that a loss of power leaves, too
    handle = os.open(key_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(handle, "wb") as file:
            file.write(pem)
            sync_file(file)
        new.rename(path)
    except BaseException:
        key_path.unlink()
        raise
    sync_directory(path.parent)
