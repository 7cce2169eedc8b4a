"""Kills and switchovers of PostgreSQL servers that Patroni manages, while a client writes rows.

Arguments: a folder, the number of rounds of each kind, the command of the server. Prints `pass NAME` or `fail NAME` for
each round and each check of the rows, and the paths of the logs if a round fails.
"""

import json
import pathlib
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import psutil
import psycopg
import yaml

MEMBERS = 3
# Maximum duration of a round in seconds. The leader key of a lost member expires after 20 s.
LIMIT = 90

folder, rounds, command = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
programs = pathlib.Path(shutil.which("postgres")).resolve().parent


def free_ports(count):
    """Returns free ports below the range of outgoing connections."""
    found = []
    while len(found) < count:
        port = random.randrange(20000, 32000)
        with socket.socket() as probe:
            if port not in found and probe.connect_ex(("127.0.0.1", port)):
                found.append(port)
    return found


class Server:
    """A server of the key-value store."""

    def __init__(self, number, clients, peers):
        self.port, self.process = clients[number], None
        client, peer = (f"http://127.0.0.1:{ports[number]}" for ports in (clients, peers))
        cluster = ",".join(f"s{i}=http://127.0.0.1:{port}" for i, port in enumerate(peers))
        self.command = [
            *command, "--name", f"s{number}", f"--data-dir={folder}/s{number}",
            f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster={cluster}",
        ]
        self.log = open(folder / f"s{number}.log", "ab")

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=self.log, stderr=self.log)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def leads(self):
        """Returns whether the server is healthy and the leader of its cluster."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v3/maintenance/status", b"{}")
        try:
            with urllib.request.urlopen(request, timeout=2) as answer:
                status = json.load(answer)
        except OSError:
            return False
        return status["leader"] == status["header"]["member_id"]


class Member:
    """A PostgreSQL server with its Patroni."""

    def __init__(self, number, sql, rest, clients):
        self.name, self.sql, self.rest, self.process = f"p{number}", sql, rest, None
        self.data = folder / self.name / "data"
        self.data.parent.mkdir()
        self.log = open(folder / f"{self.name}.log", "ab")
        (folder / f"{self.name}.yaml").write_text(yaml.safe_dump({
            "scope": "gallery",
            "name": self.name,
            "restapi": {"listen": f"127.0.0.1:{rest}", "connect_address": f"127.0.0.1:{rest}"},
            "etcd3": {"hosts": [f"127.0.0.1:{port}" for port in clients]},
            "bootstrap": {
                "dcs": {
                    "ttl": 20, "loop_wait": 2, "retry_timeout": 6, "maximum_lag_on_failover": 1 << 20,
                    "synchronous_mode": True, "synchronous_mode_strict": True,
                    "postgresql": {"use_pg_rewind": True, "parameters": {"wal_log_hints": "on"}},
                },
                "initdb": [{"encoding": "UTF8"}, "data-checksums"],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{sql}", "connect_address": f"127.0.0.1:{sql}",
                "data_dir": str(self.data), "bin_dir": str(programs), "pgpass": str(folder / f"{self.name}.pgpass"),
                "pg_hba": ["host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"],
                "authentication": {
                    "superuser": {"username": "postgres", "password": "p"},
                    "replication": {"username": "replicator", "password": "p"},
                },
                "parameters": {"unix_socket_directories": "", "shared_buffers": "16MB"},
            },
        }))

    def start(self):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "patroni", str(folder / f"{self.name}.yaml")], stdout=self.log, stderr=self.log
        )

    def kill(self):
        """Kills Patroni and PostgreSQL, which simulates a loss of power."""
        try:
            postmaster = psutil.Process(int((self.data / "postmaster.pid").read_text().split()[0]))
            victims = [postmaster, *postmaster.children(recursive=True)]
        except (OSError, psutil.NoSuchProcess):
            victims = []
        self.process.kill()
        for victim in victims:
            try:
                victim.kill()
            except psutil.NoSuchProcess:
                pass
        self.process.wait()
        psutil.wait_procs(victims, 10)

    def ask(self, path, body=None):
        """Sends a request to Patroni, and returns the status and text of the response, or None."""
        try:
            data = None if body is None else json.dumps(body).encode()
            request = urllib.request.Request(f"http://127.0.0.1:{self.rest}/{path}", data)
            with urllib.request.urlopen(request, timeout=LIMIT) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return None


class Writer(threading.Thread):
    """Inserts rows one by one and records the acknowledged rows."""

    def __init__(self):
        super().__init__(daemon=True)
        self.acknowledged, self.end, self.next = [], threading.Event(), 0

    def run(self):
        connection, warnings = None, []
        while not self.end.is_set():
            try:
                if connection is None:
                    connection = connect("read-write")
                    connection.add_notice_handler(warnings.append)
                self.next += 1
                warnings.clear()
                connection.execute("INSERT INTO rows VALUES (%s)", (self.next,))
                # PostgreSQL warns if it stopped waiting for the synchronous standby.
                if not warnings:
                    self.acknowledged.append(self.next)
                time.sleep(0.005)
            except psycopg.Error:
                if connection is not None:
                    connection.close()
                connection = None
                time.sleep(0.2)


def connect(kind, of=None):
    ports = [member.sql for member in ([of] if of else members)]
    return psycopg.connect(
        host=",".join(["127.0.0.1"] * len(ports)), port=",".join(map(str, ports)), user="postgres", dbname="postgres",
        password="p", connect_timeout=3, autocommit=True, target_session_attrs=kind,
        # A server that does not respond for 3 s counts as lost.
        tcp_user_timeout=3000, options="-c statement_timeout=30s",
    )


def until(what, check, limit=LIMIT):
    """Waits until `check` returns something true, and returns it."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        found = check()
        if found:
            return found
        time.sleep(0.2)
    raise AssertionError(f"{what}: not within {limit} s")


def primary():
    """Returns the member that holds the leader key and runs as primary, if it is the only one."""
    found = [member for member in members if (member.ask("primary") or [0])[0] == 200]
    return found[0] if len(found) == 1 else None


def whole():
    """Returns the primary if all other members follow it, one of them synchronously."""
    leader = primary()
    answer = leader and leader.ask("cluster")
    if not answer or answer[0] != 200:
        return None
    states = [(member["role"], member["state"]) for member in json.loads(answer[1])["members"]]
    standbys = [state for role, state in states if role != "leader"]
    synchronous = any(role == "sync_standby" for role, _ in states)
    return leader if standbys == ["streaming"] * (MEMBERS - 1) and synchronous else None


def progress():
    """Waits until the writer has 20 more acknowledged rows."""
    before = len(writer.acknowledged)
    until("rows are acknowledged", lambda: len(writer.acknowledged) >= before + 20)


def kill_primary():
    old = until("a primary", whole)
    old.kill()
    until("another primary", lambda: primary() not in (None, old))
    progress()
    old.start()


def switch_over():
    old = until("a primary", whole)

    def switched():
        # Patroni rejects a switchover until it has chosen a synchronous standby.
        answer = old.ask("switchover", {"leader": old.name})
        return answer and answer[0] == 200

    until("a switchover", switched)
    until("another primary", lambda: primary() not in (None, old))
    progress()


def kill_leading_server():
    old = until("a primary", whole)
    server = until("a leading server", lambda: next((s for s in servers if s.leads()), None))
    server.kill()
    progress()
    # The loss of one server of three must not cost the primary its key.
    time.sleep(8)
    assert primary() is old, "the loss of a server changed the primary"
    progress()
    server.start()


def rows(member):
    with connect("any", member) as connection:
        return {number for (number,) in connection.execute("SELECT number FROM rows")}


def check(name, test):
    began = time.monotonic()
    try:
        test()
        print("pass", name)
    except Exception as error:
        print("fail", name)
        print(f"{name}: {error!r}")
    print(f"{name}: {time.monotonic() - began:.1f} s, {len(writer.acknowledged)} rows acknowledged", flush=True)


def lost():
    """Compares the rows of each member with the acknowledged rows."""
    until("all members", whole)
    expected = set(writer.acknowledged)
    for member in members:
        end = time.monotonic() + 20
        while (missing := expected - rows(member)) and time.monotonic() < end:
            time.sleep(0.2)
        assert not missing, f"{member.name} lost {len(missing)} rows, such as {min(missing)}"
    print(f"0 of {len(expected)} acknowledged rows lost")


ports = free_ports(4 * MEMBERS)
clients, peers = ports[:MEMBERS], ports[MEMBERS:2 * MEMBERS]
servers = [Server(i, clients, peers) for i in range(MEMBERS)]
members = [Member(i, ports[2 * MEMBERS + i], ports[3 * MEMBERS + i], clients) for i in range(MEMBERS)]
writer = Writer()
try:
    for part in servers + members:
        part.start()
    until("a first primary", whole, 180)
    with connect("read-write") as connection:
        connection.execute("CREATE TABLE rows (number bigint PRIMARY KEY)")
    writer.start()
    check("start", progress)
    for number in range(1, rounds + 1):
        check(f"kill-primary-{number}", kill_primary)
        check(f"switchover-{number}", switch_over)
        check(f"kill-leading-server-{number}", kill_leading_server)
    writer.end.set()
    writer.join()
    check("all-members-have-all-acknowledged-rows", lost)
finally:
    for member in members:
        if member.process:
            member.kill()
    for server in servers:
        if server.process:
            server.kill()
