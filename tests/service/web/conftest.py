"""Real sockets: an app behind the server that both services use, by TLS or not, and certificates of the test's own."""

from tests.support.web import *
