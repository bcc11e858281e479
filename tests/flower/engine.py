"""SuperLink and SuperNodes as processes on the loopback interface, always cleaned up."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedsteer.records import Run

APP = Path(__file__).parent / "engine_app"
HOST = "127.0.0.1"


def tools_missing() -> str | None:
    """Why the engine cannot run here, if it cannot."""
    for tool in ("flwr", "flower-superlink", "flower-supernode"):
        if not (Path(sys.executable).parent / tool).exists() and shutil.which(tool) is None:
            return f"{tool} is not installed"
    return None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Engine:
    """One deployment in one folder; `secure`: TLS and authenticated SuperNodes."""

    folder: Path
    secure: bool = True
    port: int = field(default_factory=free_port)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    logs: list[IO[bytes]] = field(default_factory=list)
    run_id: str = ""  # of the run submitted last

    def __post_init__(self) -> None:
        self.home = self.folder / "home"
        self.home.mkdir(parents=True)
        connection = f'address = "{HOST}:{self.port}"\n'
        if self.secure:
            make_certificates(self.folder)
            connection += f'root-certificates = "{self.folder / "ca.pem"}"\n'
        else:
            connection += "insecure = true\n"
        text = f'[superlink]\ndefault = "here"\n\n[superlink.here]\n{connection}'
        (self.home / "config.toml").write_text(text)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        for name in list(self.processes):
            self.end(name, signal.SIGTERM)
        for name in list(self.processes):
            try:
                self.processes[name].wait(5)
            except subprocess.TimeoutExpired:
                self.processes[name].kill()
                self.processes[name].wait(5)
        for stray in self._strays():
            with contextlib.suppress(ProcessLookupError):
                os.kill(stray, signal.SIGKILL)
        for log in self.logs:
            log.close()

    @property
    def environment(self) -> dict[str, str]:
        beside = str(Path(sys.executable).parent)
        return os.environ | {
            "FLWR_HOME": str(self.home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "PATH": beside + os.pathsep + os.environ["PATH"],
            "OMP_NUM_THREADS": "1",
        }

    def launch(self, name: str, *command: str) -> None:
        log = (self.folder / f"{name}.log").open("ab")
        self.logs.append(log)
        self.processes[name] = subprocess.Popen(
            command, env=self.environment, cwd=self.folder, stdout=log, stderr=log
        )

    def end(self, name: str, how: signal.Signals = signal.SIGKILL) -> None:
        """Signal a process and, after a kill, wait for its end."""
        process = self.processes[name]
        if process.poll() is None:
            process.send_signal(how)
        if how == signal.SIGKILL:
            process.wait(10)

    def ended(self, name: str) -> bool:
        return self.processes[name].poll() is not None

    def log_of(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def superlink(self, *more: str) -> None:
        security = ["--insecure"]
        if self.secure:
            security = [
                "--ssl-certfile", str(self.folder / "server.pem"),
                "--ssl-keyfile", str(self.folder / "server.key"),
                "--ssl-ca-certfile", str(self.folder / "ca.pem"),
                "--enable-supernode-auth",
                "--database", str(self.folder / "state.db"),
            ]  # fmt: skip
        self.launch(
            "superlink",
            "flower-superlink",
            *security,
            *("--host", HOST, "--port", str(self.port)),
            "--disable-runtime-dependency-installation",
            *more,
        )
        self.wait_for(self.listens, 60, "the SuperLink to listen")

    def supernode(self, name: str, partition: int, key: Path | None = None) -> None:
        security = ["--insecure"]
        if self.secure:
            security = ["--root-certificates", str(self.folder / "ca.pem")]
        if key is not None:
            security += ["--auth-supernode-private-key", str(key)]
        self.launch(
            name,
            "flower-supernode",
            *security,
            *("--superlink", f"{HOST}:{self.port}", "--host", HOST, "--port", str(free_port())),
            *("--node-config", f"partition-id={partition} num-partitions=3"),
        )

    def flwr(self, *command: str, seconds: float = 60) -> str:
        done = subprocess.run(
            ["flwr", *command],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def submit(
        self, source: Path = APP, virtual: int = 0, connection: str = "here", **config: Any
    ) -> None:
        """Submit a copy of an app; `virtual`: number of nodes, on the simulation engine."""
        app = self.folder / "app"
        if not app.exists():
            shutil.copytree(source, app, ignore=shutil.ignore_patterns("__pycache__"))
        pairs = {key.replace("_", "-"): value for key, value in config.items()}
        text = " ".join(f"{key}={json.dumps(value)}" for key, value in pairs.items())
        simulated = ["--federation-config", f"num-supernodes={virtual}"] if virtual else []
        said = self.flwr("run", str(app), connection, "--run-config", text, *simulated)
        self.run_id = said.partition("Successfully started run ")[2].split()[0]

    def log_of_run(self) -> str:
        """What the ServerApp has logged."""
        return self.flwr("log", self.run_id, "here", "--show")

    def wait_for(self, ready: Callable[[], Any], seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            if time.monotonic() > deadline:
                tails = "".join(f"\n--- {n}\n{self.log_of(n)[-1500:]}" for n in self.processes)
                raise AssertionError(f"waited {seconds:g} s in vain for {what}{tails}")
            time.sleep(0.5)

    def _strays(self) -> list[int]:
        """Children that have outlived ours: whatever still works in our own Flower home."""
        mark, found = f"FLWR_HOME={self.home}\0".encode(), []
        for entry in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in entry.read_bytes():
                    found.append(int(entry.parent.name))
        return found

    def listens(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex((HOST, self.port)) == 0


def rounds_of(folder: Path) -> list[dict[str, Any]]:
    return Run(folder).rounds if (folder / "manifest.json").exists() else []


def make_certificates(folder: Path) -> None:
    """A certificate authority of our own, and with it a certificate for the loopback address."""

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])

    def certificate(subject: str, key: Any, signer: Any, authority: bool) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        address = x509.IPAddress(ipaddress.ip_address(HOST))
        return (
            x509.CertificateBuilder()
            .subject_name(named(subject))
            .issuer_name(named("test authority"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName([x509.DNSName("localhost"), address]), critical=False
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False
            )
            .sign(signer, hashes.SHA256())
        )

    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    pem = serialization.Encoding.PEM
    root = certificate("test authority", authority, authority, True)
    leaf = certificate("localhost", server, authority, False)
    (folder / "ca.pem").write_bytes(root.public_bytes(pem))
    (folder / "server.pem").write_bytes(leaf.public_bytes(pem))
    private = server.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "server.key").write_bytes(private)


def make_key(path: Path) -> tuple[Path, bytes]:
    """A SuperNode's key pair on disk (`path` and `path`.pub), and its public half in PEM."""
    key = ec.generate_private_key(ec.SECP384R1())
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        )
    )
    path.chmod(0o600)
    public = key.public_key()
    path.with_suffix(".pub").write_bytes(
        public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    )
    return path, public.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
