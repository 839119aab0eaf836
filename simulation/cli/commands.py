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
        "Runs a whole federation on this machine: trains, compares, and answers a request.",
    ),
    "partition": CommandEntry(
        "experiments",
        "partition",
        "Divides a data set into shards, one folder per client.",
    ),
    "simulate": CommandEntry(
        "experiments",
        "simulate",
        "Trains a federation on one machine or a cluster, and compares it with simple baselines.",
    ),
    "report": CommandEntry(
        "experiments",
        "report",
        "Draws a run's curves (curves.png) and writes its table (report.md) into its folder.",
    ),
    "worth": CommandEntry(
        "worth",
        "worth",
        "Forecasts this silo's gain by joining, or shows the last run's result.",
    ),
    "tune": CommandEntry(
        "tuning",
        "tune",
        "Searches a strategy's settings by validation alone. Settings given with --set stay fixed.",
    ),
    "encode": CommandEntry(
        "encoding",
        "encode",
        "Encodes titles and attributes of items as vectors.",
    ),
    "invite": CommandEntry(
        "joining",
        "invite",
        "Invites silos: writes an invitation for each, which registers one key under one name, once.",
    ),
    "join": CommandEntry(
        "joining",
        "join",
        "Joins a federation: makes keys, converts the data, registers, writes silo.toml and serves.",
    ),
    "aggregator": CommandEntry(
        "serving",
        "aggregator",
        "Serves the aggregator.",
    ),
    "client": CommandEntry(
        "serving",
        "client",
        "Serves one silo's client.",
    ),
    "run": CommandEntry(
        "runs",
        "run",
        "Starts a run at an aggregator and follows it. Prints missing clients on stderr.",
    ),
    "status": CommandEntry(
        "runs",
        "status",
        "Shows the state of a run: missing clients, deadline, or why it failed.",
    ),
    "cancel": CommandEntry(
        "runs",
        "cancel",
        "Cancels a run. Each silo stops at its next call, and keeps its best model.",
    ),
    "recommend": CommandEntry(
        "recommending",
        "recommend",
        "Fetches recommendations from a silo: for some users, or for all into a file.",
    ),
    "refresh": CommandEntry(
        "silo",
        "refresh",
        "Merges posted interactions into a client's shard, and computes its model again.",
    ),
    "models": CommandEntry(
        "silo",
        "models",
        "Lists the models that a client keeps, or rolls back to an earlier one.",
    ),
    "secret": CommandEntry(
        "machine",
        "secret",
        "Makes random 256-bit secrets. An existing file is kept.",
    ),
    "certificates": CommandEntry(
        "machine",
        "certificates",
        "Makes a development authority, and certificates for aggregator, clients and operator. Not for production.",
    ),
    "doctor": CommandEntry(
        "machine",
        "doctor",
        "Checks Python, packages, device, disk, ports, shard, settings, certificates and the aggregator.",
    ),
    "catalogue": CommandEntry(
        "catalogue",
        "app",
        "Makes the list of items that all silos share, or matches a silo's items to it. Without a subcommand it "
        "merges: lpsfed catalogue SOURCE ... --out LIST.",
    ),
    "compose": CommandEntry(
        "deployment",
        "compose",
        "Writes docker-compose.yml for a number of silos, and two files that extend it.",
    ),
    "kubernetes": CommandEntry(
        "deployment",
        "kubernetes",
        "Writes the Kubernetes manifests of the demo's silos, or of one silo that has joined.",
    ),
    "probe": CommandEntry(
        "audit.cli",
        "probe",
        "Probes the boundary from inside a part: tries actions that must be refused.",
    ),
    "privacy-report": CommandEntry(
        "audit.cli",
        "privacy_report",
        "Compares what left the clients with what arrived at the aggregator.",
    ),
    "break": CommandEntry(
        "breaks",
        "break_",
        "Plants a fault in the running Compose federation, which the report must name.",
    ),
    "keys": CommandEntry(
        "keys",
        "app",
        "Manages clients' key pairs and the aggregator's registry of public keys.",
    ),
    "ledger": CommandEntry(
        "ledger",
        "app",
        "Verifies and repairs the records of a stopped client.",
    ),
    "members": CommandEntry(
        "members",
        "app",
        "Manages the file of pinned public keys, and a silo's consent to new members.",
    ),
    "quarantine": CommandEntry(
        "quarantine",
        "app",
        "Lists, excludes and readmits clients of an aggregator.",
    ),
    "shard": CommandEntry(
        "shards",
        "app",
        "Adds to a silo's shard, or erases from it. A client uses the new shard from its next start on.",
    ),
}
