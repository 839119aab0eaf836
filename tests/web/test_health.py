"""The health check of containers: by HTTP, by TLS, by mutual TLS, and with the settings of the service itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fastapi import FastAPI, Response

from shared.web.health import main
from shared.web.listening import Listening

if TYPE_CHECKING:
    from conftest import Papers, Served

ROOT = Path(__file__).parents[2]


@pytest.fixture
def app() -> FastAPI:
    app = FastAPI()

    @app.get("/health/ready")
    def ready() -> dict[str, str]:
        return {"status": "ready"}

    @app.get("/health/not")
    def starting() -> Response:
        return Response(status_code=503)

    return app


def test_a_service_that_is_ready_and_one_that_is_not(
    app: FastAPI, served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(app) as url:
        assert main([f"{url}/health/ready"]) == 0 and capsys.readouterr().err == ""
        assert main([f"{url}/health/not"]) == 1 and "503" in capsys.readouterr().err
    assert main([f"{url}/health/ready"]) == 1 and "refused" in capsys.readouterr().err


def test_by_tls_the_authority_is_needed(
    app: FastAPI, served: Served, papers: Papers, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(app, Listening(**papers.port())) as url:
        asked = f"{url}/health/ready"
        assert main([asked, "--ca", str(papers.crt("authority"))]) == 0
        assert main([asked, "--ca", str(papers.crt("stranger"))]) == 1
        assert "CERTIFICATE_VERIFY_FAILED" in capsys.readouterr().err
        assert main([asked]) == 1
        assert main([asked, "--ca", str(papers.folder / "none")]) == 1 and "No such file" in capsys.readouterr().err


def test_by_mutual_tls_a_certificate_is_needed(app: FastAPI, served: Served, papers: Papers) -> None:
    shown = ["--certificate", str(papers.crt("caller")), "--key", str(papers.key("caller"))]
    with served(app, Listening(**papers.port(mutual=True))) as url:
        asked = [f"{url}/health/ready", "--ca", str(papers.crt("authority"))]
        assert main([*asked, *shown]) == 0 and main(asked) == 1


@pytest.mark.parametrize("mutual", [False, True])
def test_a_container_asks_its_own_service_with_its_own_settings(
    app: FastAPI, served: Served, papers: Papers, mutual: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever name the certificate is made out to, and whoever has signed it."""
    papers.make("service", hosts=("service.example.org",))
    monkeypatch.setenv("OWN_TLS_CERTIFICATE", str(papers.crt("service")))
    monkeypatch.setenv("OWN_TLS_KEY", str(papers.key("service")))
    with served(app, Listening(**papers.port(mutual=mutual))) as url:
        asked = f"{url.replace('https', 'http')}/health/ready"  # as the image says it
        assert main(["--of", "OWN", asked]) == 0
        monkeypatch.setenv("OWN_TLS_CERTIFICATE", str(papers.crt("caller")))
        monkeypatch.setenv("OWN_TLS_KEY", str(papers.key("caller")))
        assert main(["--of", "OWN", asked]) == 1  # another one answers there


def test_without_a_certificate_among_the_settings_it_is_http(app: FastAPI, served: Served) -> None:
    with served(app) as url:
        assert main(["--of", "OWN", f"{url}/health/ready"]) == 0


@pytest.mark.parametrize("service", ["aggregator", "client"])
def test_an_image_s_health_check_runs(service: str) -> None:
    """The very words of its Dockerfile, with nobody listening."""
    text = (ROOT / f"{service}_service" / "Dockerfile").read_text(encoding="utf-8")
    (line,) = (line for line in text.splitlines() if "shared.web.health" in line)
    words = [word.strip(' "') for word in line.partition("[")[2].rstrip("]").split(",")]
    assert words[:3] == ["python", "-m", "shared.web.health"] and words[3:5] == ["--of", f"LPSFED_{service.upper()}"]
    port = {"aggregator": "8800", "client": "8801"}[service]
    assert words[5] == f"http://127.0.0.1:{port}/health/ready"
    nowhere = [*words[1:5], "http://127.0.0.1:9/health/ready"]
    done = subprocess.run([sys.executable, *nowhere], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "expected a service that is ready" in done.stderr and "Traceback" not in done.stderr
