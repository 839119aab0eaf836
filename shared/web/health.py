"""Is the service at this address ready? `python -m shared.web.health URL [--ca FILE] [--certificate FILE --key FILE]`

For the health checks of containers: it imports nothing that takes time. With `--of PREFIX` it asks the service of its
own container, whose settings PREFIX_TLS_CERTIFICATE and PREFIX_TLS_KEY are: where there are any, by TLS; it shows that
certificate and believes no other one.
"""

from __future__ import annotations

import argparse
import os
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence

from shared.timeouts import HEALTH_SECONDS


def ask(url: str, context: ssl.SSLContext) -> str | None:
    """None where the service says that all is well, else what was wrong."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(url, timeout=HEALTH_SECONDS):
            return None
    except (OSError, urllib.error.URLError) as error:
        return str(error)


def believing(ca: str | None, certificate: str | None, key: str | None) -> ssl.SSLContext:
    """Whom to believe, and what to show. Without a `ca` whom this machine believes."""
    context = ssl.create_default_context(cafile=ca)
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    return context


def of_own(url: str, environment: Mapping[str, str], prefix: str) -> tuple[str, ssl.SSLContext]:
    """The address as this container's service answers to it, and its own certificate as the one that is believed."""
    certificate, key = environment.get(f"{prefix}_TLS_CERTIFICATE"), environment.get(f"{prefix}_TLS_KEY")
    if certificate is None:
        return url, ssl.create_default_context()
    context = believing(certificate, certificate, key)
    context.check_hostname = False  # it need not be made out to 127.0.0.1
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # without whoever signed it
    return url.replace("http:", "https:", 1), context


def main(arguments: Sequence[str]) -> int:
    """0 for a service that is ready, 1 for one that is not."""
    parser = argparse.ArgumentParser(prog="python -m shared.web.health", description="Is a service ready?")
    parser.add_argument("url")
    parser.add_argument("--ca", help="PEM; whose certificates are believed")
    parser.add_argument("--certificate", help="PEM, shown to a service that asks for one")
    parser.add_argument("--key", help="PEM, the certificate's")
    parser.add_argument("--of", metavar="PREFIX", help="of the settings of this container's service")
    asked = parser.parse_args(arguments)
    try:
        if asked.of is not None:
            wrong = ask(*of_own(asked.url, os.environ, asked.of))
        else:
            wrong = ask(asked.url, believing(asked.ca, asked.certificate, asked.key))
    except OSError as error:  # a file that cannot be read, or holds no certificate
        wrong = str(error)
    if wrong is not None:
        sys.stderr.write(f"health: {asked.url}: expected a service that is ready, got: {wrong}\n")
    return 0 if wrong is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
