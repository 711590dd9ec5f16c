"""Stands between a client and an API server and makes faults on purpose: answers of its own, cut connections, silence,
events that come late or never. Plain HTTP towards the client, TLS towards the server; credentials pass through."""
import http.client
import json
import re
import socket
import threading
import time
import urllib.parse


class Rule:
    """What happens to requests whose verb and path match. The first rule that matches and has times left is used.

    answer=(code, headers, body)   instead of asking the server
    cut="before" | "after"         the connection ends: without the server knowing, or after it has done the request
    stall=SECONDS                  nothing for so long, then the connection ends
    call=FUNCTION(request)         before the request is sent on; its own answer (code, headers, body) is taken when it gives one
    after=FUNCTION(request, code)  when the server has answered and the client does not know it yet
    lines=FUNCTION(line, number)   for watches: returns the lines (bytes) to send instead; "cut" ends it, "stall" stops it silently
    """

    def __init__(self, verb, path, times=1, **does):
        self.verb, self.path, self.left, self.does = re.compile(verb), re.compile(path), times, does
        self.hits = 0

    def take(self, request):
        if self.left == 0 or not self.verb.fullmatch(request.verb) or not self.path.search(request.path):
            return False
        self.left -= 1
        self.hits += 1
        return True


class Request:
    def __init__(self, verb, path, headers, body):
        self.verb, self.path, self.headers, self.body = verb, path, headers, body
        self.watch = "watch=1" in path or "watch=true" in path
        self.code = 0
        self.time = time.monotonic()

    @property
    def write(self):
        return self.verb != "GET"

    @property
    def lease(self):
        return "/leases" in self.path

    @property
    def event(self):
        return "/events" in self.path

    def __repr__(self):
        return f"{self.verb} {self.path.split('?')[0]} {self.code}"


def status_answer(code, reason, message="made by a test", retry_after=None, details=None):
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message}
    if details:
        body["details"] = details
    headers = {"Content-Type": "application/json"}
    if retry_after is not None:
        headers["Retry-After"] = str(retry_after)
    return code, headers, json.dumps(body).encode()


class FaultProxy:
    def __init__(self, api):
        self.api = api
        self.rules, self.log, self.lock = [], [], threading.Lock()
        self.connections = set()
        self.refusing = False
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def add(self, verb, path, times=1, **does):
        rule = Rule(verb, path, times, **does)
        with self.lock:
            self.rules.insert(0, rule)
        return rule

    def clear(self):
        with self.lock:
            self.rules = []

    def requests(self, verb=".*", path=""):
        with self.lock:
            return [r for r in self.log if re.fullmatch(verb, r.verb) and re.search(path, r.path)]

    def writes(self):
        """Writes but those of the lease and of events."""
        return [r for r in self.requests() if r.write and not r.lease and not r.event]

    def kubeconfig(self, folder, name="proxy", token=None):
        path = f"{folder}/{name}.json"
        config = {"apiVersion": "v1", "kind": "Config", "current-context": "c",
                  "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
                  "users": [{"name": "u", "user": {"token": token or self.api.token or "none"}}],
                  "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file)
        return path

    def cut_all(self):
        """Every connection ends now."""
        with self.lock:
            connections = list(self.connections)
        for connection in connections:
            close(connection)

    def stop(self):
        self.listener.close()
        self.cut_all()

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            if self.refusing:
                close(connection)
                continue
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self.lock:
                self.connections.add(connection)
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        upstream = None
        reader = connection.makefile("rb")
        try:
            while True:
                request = read_request(reader)
                if request is None:
                    return
                rule = self.choose(request)
                upstream = upstream or self.api.connect(timeout=600)
                if not self.handle(connection, upstream, request, rule.does if rule else {}):
                    return
        except (OSError, http.client.HTTPException, ValueError):
            pass
        finally:
            with self.lock:
                self.connections.discard(connection)
            close(connection)
            if upstream:
                upstream.close()

    def choose(self, request):
        with self.lock:
            self.log.append(request)
            return next((rule for rule in self.rules if rule.take(request)), None)

    def handle(self, connection, upstream, request, does):
        """True: the connection goes on."""
        answer = does.get("answer")
        if "call" in does:
            answer = does["call"](request) or answer
        if does.get("cut") == "before":
            return False
        if "stall" in does:
            time.sleep(does["stall"])
            return False
        if answer:
            request.code = answer[0]
            send_answer(connection, *answer)
            return True
        upstream.request(request.verb, request.path, request.body or None, request.headers)
        reply = upstream.getresponse()
        if request.watch and reply.status == 200:
            request.code = 200
            return forward_watch(connection, reply, does.get("lines"))
        body = reply.read()
        request.code = reply.status
        if "after" in does:
            does["after"](request, reply.status)
        if does.get("cut") == "after":
            return False
        kept = {n: v for n, v in reply.getheaders() if n.lower() in ("content-type", "retry-after", "audit-id")}
        send_answer(connection, reply.status, kept, body)
        return True


def close(connection):
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    connection.close()


def read_request(reader):
    line = reader.readline(65536)
    if not line:
        return None
    verb, path, _ = line.decode().split(" ", 2)
    headers = {}
    while True:
        line = reader.readline(65536).decode().strip()
        if not line:
            break
        name, _, value = line.partition(":")
        headers[name] = value.strip()
    length = int(next((v for n, v in headers.items() if n.lower() == "content-length"), 0))
    body = reader.read(length) if length else b""
    dropped = ("host", "connection", "content-length", "accept-encoding")
    return Request(verb, path, {n: v for n, v in headers.items() if n.lower() not in dropped}, body)


def send_answer(connection, code, headers, body):
    head = f"HTTP/1.1 {code} {http.client.responses.get(code, '')}\r\n"
    head += "".join(f"{n}: {v}\r\n" for n, v in headers.items()) + f"Content-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)


def send_chunk(connection, data):
    connection.sendall(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def forward_watch(connection, reply, lines):
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
    number = 0
    while True:
        line = reply.readline()
        if not line:
            send_chunk(connection, b"")
            return False
        number += 1
        made = lines(line, number) if lines else [line]
        if made == "cut":
            return False
        if made == "stall":
            time.sleep(600)
            return False
        for part in made:
            send_chunk(connection, part)


def query(path):
    return dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(path).query))
