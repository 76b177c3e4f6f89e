"""A real broker with a listener for TLS and SASL/PLAIN, and the certificates of its authority."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.kafka import RealKafka
from tests.support.ports import free_port

USER = "switchyard"
PASSWORD = "the-right-password-of-the-broker"
_PROPERTIES = """
listeners=PLAINTEXT://127.0.0.1:{{port}},SASL_SSL://127.0.0.1:{secured},CONTROLLER://127.0.0.1:{{controller}}
advertised.listeners=PLAINTEXT://127.0.0.1:{{port}},SASL_SSL://localhost:{secured}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_ssl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
  user_{user}="{password}";
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
"""


class Authority:
    """A certificate authority of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = self._signed(_name("authority of a test"), self._key.public_key(), is_authority=True)
        path.write_bytes(_pem(self._certificate))

    def keystore(self, host: str) -> str:
        """A key and its certificate for a host, with the authority's, as PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._signed(_name(host), key.public_key(), host=host)
        text = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return (text + _pem(certificate) + _pem(self._certificate)).decode()

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, host: str | None = None, is_authority: bool = False
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(_name("authority of a test"))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        if host is not None:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        return builder.sign(self._key, hashes.SHA256())


class SecuredKafka(RealKafka):
    """Tests create topics over the plain listener; `secured` is the address of the other one."""

    def __init__(self, libs: Path, authority: Authority, folder: Path) -> None:
        port = free_port()
        self.secured = f"localhost:{port}"
        keystore = folder / "broker.pem"
        keystore.write_text(authority.keystore("localhost"))
        super().__init__(libs, _PROPERTIES.format(secured=port, user=USER, password=PASSWORD, keystore=keystore))


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
