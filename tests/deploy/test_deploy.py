"""`deploy/`: what its script makes, that its compose file is whole, and that its commands work.

No container is started: the very command lines of the compose file run as processes instead, each
with the folders that it would find mounted.
"""

from __future__ import annotations

import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedsteer.records import Run
from tests.flower.engine import HOST, Engine, free_port, tools_missing

yaml = pytest.importorskip("yaml", reason="PyYAML comes with Flower")
SOURCE = Path(__file__).resolve().parents[2] / "deploy"
SITES = ("site-1", "site-2", "site-3")

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="a shell script"),
    pytest.mark.skipif(
        None in map(shutil.which, ("openssl", "ssh-keygen")), reason="openssl or ssh is missing"
    ),
]


@pytest.fixture
def deploy(tmp_path: Path) -> Path:
    """A copy of the folder, as a user has it."""
    copy = tmp_path / "deploy"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("secrets", "state", ".env"))
    return copy


def prepare(folder: Path, *names: str, **variables: str) -> str:
    path = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
    done = subprocess.run(
        ["./prepare.sh", *names], cwd=folder, env=path | variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def services(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    return found


def mounted(folder: Path, service: dict[str, Any]) -> dict[str, Path]:
    """Where a container finds what."""
    pairs = (volume.split(":")[:2] for volume in service["volumes"])
    return {inside: (folder / outside).resolve() for outside, inside in pairs}


def on_this_machine(folder: Path, service: dict[str, Any], port: int) -> list[str]:
    """The command of a service, with our paths and addresses."""
    places = mounted(folder, service)
    command = []
    for word in service["command"]:
        for inside, outside in places.items():
            word = word.replace(f"{inside}/", f"{outside}/")
        word = word.replace("superlink:8000", f"{HOST}:{port}").replace("0.0.0.0", HOST)
        command.append(word.replace("--port=8000", f"--port={port}"))
    return command


def test_the_script_makes_what_each_container_may_know(deploy: Path) -> None:
    assert prepare(deploy, "fl.example.org", "10.0.0.7") == (
        "secrets/ is complete for: site-1 site-2 site-3\n"
    )
    secrets = deploy / "secrets"
    names = {path.name: sorted(p.name for p in path.iterdir()) for path in secrets.iterdir()}
    assert names["superlink"] == ["ca.pem", "server.key", "server.pem", "superexec.secret"]
    assert names["serverapp"] == ["ca.pem", "superexec.secret"]
    assert names["site-2"] == ["ca.pem", "key", "key.pub"]
    assert names["cli"] == ["ca.pem", "config.toml", "site-1.pub", "site-2.pub", "site-3.pub"]
    for path in secrets.rglob("*"):
        assert not path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO), path
    command = ["openssl", "x509", "-in", secrets / "superlink/server.pem", "-noout", "-text"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.search(r"DNS:superlink, .*DNS:fl.example.org, IP Address:10.0.0.7", text)
    assert re.fullmatch(r"FL_USER=\d+:\d+\n", (deploy / ".env").read_text())


def test_the_script_keeps_what_there_is_and_adds_sites(deploy: Path) -> None:
    prepare(deploy)
    files = [path for path in (deploy / "secrets").rglob("*") if path.is_file()]
    before = {path: path.read_bytes() for path in files}
    prepare(deploy, SITES="site-1 site-4")
    assert {path: path.read_bytes() for path in files} == before
    assert (deploy / "secrets/site-4/key").exists() and (deploy / "secrets/cli/site-4.pub").exists()


def test_another_name_needs_no_other_authority(deploy: Path) -> None:
    prepare(deploy)
    secrets = deploy / "secrets"
    authority = (secrets / "site-1/ca.pem").read_bytes()
    for path in secrets.glob("superlink/server.*"):
        path.unlink()
    prepare(deploy, "fl.example.org")
    assert (secrets / "site-1/ca.pem").read_bytes() == authority
    command = ["openssl", "verify", "-CAfile", "site-1/ca.pem", "-verify_hostname"]
    command += ["fl.example.org", "superlink/server.pem"]
    assert subprocess.run(command, cwd=secrets, capture_output=True).returncode == 0


def test_every_mounted_file_exists_and_private_keys_stay_apart(deploy: Path) -> None:
    prepare(deploy)
    found = services(deploy)
    for name, service in found.items():
        for inside, outside in mounted(deploy, service).items():
            in_repository = SOURCE.parent / outside.relative_to(deploy.parent)
            assert outside.exists() or in_repository.exists(), (name, outside)
            assert outside != deploy / "secrets" and "authority" not in outside.parts, inside
        for word in service.get("command", ()):
            if inside := re.search(r"=/fl/secrets/(.*)", word):
                assert (mounted(deploy, service)["/fl/secrets"] / inside[1]).exists(), word
    assert [name for name in found if name.startswith("site-")] == list(SITES)
    for site in SITES:
        assert mounted(deploy, found[site])["/fl/secrets"] == deploy / "secrets" / site


def test_docker_compose_accepts_the_file(deploy: Path) -> None:
    command = ["docker-compose"] if shutil.which("docker-compose") else ["docker", "compose"]
    if shutil.which(command[0]) is None:
        pytest.skip("docker compose is not installed")
    if subprocess.run([*command, "version"], capture_output=True).returncode:
        pytest.skip("this docker has no compose")
    prepare(deploy)
    done = subprocess.run([*command, "config", "--quiet"], cwd=deploy, capture_output=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.engine
@pytest.mark.skipif(tools_missing() is not None, reason=str(tools_missing()))
def test_the_commands_of_the_compose_file_train(deploy: Path, tmp_path: Path) -> None:
    prepare(deploy)
    found = services(deploy)
    records = mounted(deploy, found["serverapp"])["/fl/state"] / "run-1"
    with Engine(tmp_path / "engine", secure=False) as engine:
        connection = (deploy / "secrets/cli/config.toml").read_text()
        connection = connection.replace("superlink:8000", f"{HOST}:{engine.port}")
        connection = connection.replace("/fl/secrets", str(deploy / "secrets/cli"))
        (engine.home / "config.toml").write_text(connection)
        engine.launch("superlink", *on_this_machine(deploy, found["superlink"], engine.port))
        engine.wait_for(engine.listens, 60, "the SuperLink to listen")
        engine.launch("serverapp", *on_this_machine(deploy, found["serverapp"], engine.port))
        for site in SITES:
            key = deploy / "secrets/cli" / f"{site}.pub"
            engine.flwr("supernode", "register", str(key), "federation")
            command = on_this_machine(deploy, found[site], engine.port)
            engine.launch(site, *command, f"--port={free_port()}")  # they share a machine here
        engine.submit(
            connection="federation",
            num_rounds=2,
            round_timeout=60.0,
            fedsteer_folder=str(records),
            fedsteer_authenticated=True,
            fedsteer_min_available_nodes=3,
        )
        engine.wait_for(lambda: (records / "result.json").exists(), 150, "the run to finish")
    rows = Run(records).rows("clients")
    assert [row["event"] for row in rows] == ["fresh"] * 6
    assert len({row["client"] for row in rows}) == 3
    assert all(str(row["client"]).startswith("key-") for row in rows)
