"""Table of all commands of `lpsfed`: name, place of definition and help.

A command's module is imported when that command is called: most of them need libraries that take seconds to import.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class CommandEntry:
    """Entry of a command in the table.

    module: in simulation.cli, or its full name. attribute: a function, or the typer app of a group of commands. help:
    the first paragraph of the command's help.
    """

    module: str
    attribute: str
    help: str

    @property
    def module_name(self) -> str:
        """Full name of the module."""
        return self.module if "." in self.module else f"simulation.cli.{self.module}"


COMMANDS: Final[dict[str, CommandEntry]] = {
    "demo": CommandEntry(
        "demo",
        "demo",
        "Partition, start aggregator and clients as processes, train, report, and answer a request.",
    ),
    "partition": CommandEntry(
        "experiments",
        "partition",
        "Divide a data set into shards, one folder a client.",
    ),
    "simulate": CommandEntry(
        "experiments",
        "simulate",
        "Train a federation on one machine or a cluster, and hold it against the floors.",
    ),
    "report": CommandEntry(
        "experiments",
        "report",
        "Draw a run's curves (curves.png) and write its table (report.md) into its folder.",
    ),
    "worth": CommandEntry(
        "worth",
        "worth",
        "Forecast what a federation would bring this silo: its own users, cut into small silos that join each other.",
    ),
    "tune": CommandEntry(
        "tuning",
        "tune",
        "Search a strategy's settings by validation alone. A setting given with --set stays as it is.",
    ),
    "encode": CommandEntry(
        "encoding",
        "encode",
        "Encode the titles and attributes of items as vectors.",
    ),
    "invite": CommandEntry(
        "joining",
        "invite",
        "Invite silos. Each invitation registers one key under one name, once: hand it over as you would a password.",
    ),
    "join": CommandEntry(
        "joining",
        "join",
        "Join a federation: make keys, convert the data, register by the invitation, write silo.toml, and serve.",
    ),
    "aggregator": CommandEntry(
        "serving",
        "aggregator",
        "Serve the aggregator. Settings also come from LPSFED_AGGREGATOR_*; flags win.",
    ),
    "client": CommandEntry(
        "serving",
        "client",
        "Serve one silo's client. Settings also come from LPSFED_CLIENT_* and a TOML file; flags win.",
    ),
    "run": CommandEntry(
        "runs",
        "run",
        "Start a run at an aggregator, as its operator, and follow it to its end. Whom it waits for it says on stderr.",
    ),
    "status": CommandEntry(
        "runs",
        "status",
        "Say where a run stands: who is missing and until when, or why it failed. Exit code 1 for one that failed.",
    ),
    "cancel": CommandEntry(
        "runs",
        "cancel",
        "End a run before its time. Each silo stops at its next call, and goes on answering by the best model it has.",
    ),
    "recommend": CommandEntry(
        "recommending",
        "recommend",
        "Ask a silo for recommendations: for some users, or for very many into a file.",
    ),
    "refresh": CommandEntry(
        "silo",
        "refresh",
        "Let a client's shard absorb what applications have posted, and compute its model anew. During a run "
        "it waits for the end of the round.",
    ),
    "models": CommandEntry(
        "silo",
        "models",
        "List the models that a client keeps, or roll back to an earlier one. It answers until a run has one "
        "that validation prefers.",
    ),
    "secret": CommandEntry(
        "machine",
        "secret",
        "Make random 256-bit secrets. A file that is there already is left as it is.",
    ),
    "certificates": CommandEntry(
        "machine",
        "certificates",
        "Make a development authority, and certificates for aggregator, clients and operator. Not for production.",
    ),
    "doctor": CommandEntry(
        "machine",
        "doctor",
        "Check Python, packages, device, disk, ports, shard, settings with their certificates, and the aggregator.",
    ),
    "catalogue": CommandEntry(
        "catalogue",
        "app",
        "Make the list of items that all silos share, or find a silo's own items on it. Without a command's name it "
        "merges: lpsfed catalogue SOURCE ... --out LIST.",
    ),
    "compose": CommandEntry(
        "deployment",
        "compose",
        "Write docker-compose.yml for a number of silos, and beside it the two files that can be added to it.",
    ),
    "kubernetes": CommandEntry(
        "deployment",
        "kubernetes",
        "Write the silos of the Kubernetes demo, each after the folder of silo-1, and remove those beyond the number.",
    ),
    "probe": CommandEntry(
        "audit.cli",
        "probe",
        "Try what a part of the system must not be able to do, from where that part is.",
    ),
    "privacy-report": CommandEntry(
        "audit.cli",
        "privacy_report",
        "Hold all that left the clients against all that arrived: from evidence, or from running services.",
    ),
    "break": CommandEntry(
        "breaks",
        "break_",
        "Plant a break in the running `docker compose` federation, show the report naming it, and mend it again.",
    ),
    "keys": CommandEntry(
        "keys",
        "app",
        "Enrol clients: their key pairs, and who is registered.",
    ),
    "ledger": CommandEntry(
        "ledger",
        "app",
        "A client's records: verify them, renew their key, adopt what is left.",
    ),
    "members": CommandEntry(
        "members",
        "app",
        "The members of a federation, as each silo pins them.",
    ),
    "quarantine": CommandEntry(
        "quarantine",
        "app",
        "Clients that are shut out: see them, shut one out, let one in again.",
    ),
    "shard": CommandEntry(
        "shards",
        "app",
        "Change a shard. A client works with the new one from its next start on.",
    ),
}
