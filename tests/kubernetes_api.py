"""An API server of Kubernetes for one namespace, whose pods are processes of this machine.

It has what ``spark-submit`` and a Spark driver use: objects that are created, applied, listed, watched and
deleted. Like the real server it refuses an object that does not follow the API's schema; the schema is that
of the official client, whose models are generated from it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import json
import re
import select
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml
from kubernetes.client import ApiClient

Manifest = dict[str, Any]
# Starts the container of a pod: gets the pod and its mounted files by their path.
StartContainer = Callable[[Manifest, Mapping[str, str]], "subprocess.Popen[bytes]"]

NAMESPACE = "merge"
_MODELS = {
    "pods": "V1Pod",
    "services": "V1Service",
    "configmaps": "V1ConfigMap",
    "persistentvolumeclaims": "V1PersistentVolumeClaim",
    "networkpolicies": "V1NetworkPolicy",
}
_PATH = re.compile(rf"/apis?/.*?/?v1/namespaces/{NAMESPACE}/(\w+)(?:/(.+))?")
_WATCH_SECONDS = 0.5


def find_schema_error(manifest: Manifest, model: str) -> str | None:
    """Return why an object does not follow the schema: an unknown field, a wrong type, or a missing field."""
    client = ApiClient()
    try:
        known_part = client.sanitize_for_serialization(
            client.deserialize(SimpleNamespace(data=json.dumps(manifest)), model)
        )
    except ValueError as error:
        return str(error)
    return None if known_part == _remove_nulls(manifest) else f"{manifest} has more than {known_part}"


class KubernetesApi(ThreadingHTTPServer):
    """The server, which starts a process for each pod that is created."""

    daemon_threads = True

    def __init__(self, start_container: StartContainer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        # Every object that was created, with its content at that time.
        self.created: list[Manifest] = []
        self.deleted: list[str] = []
        self._start_container = start_container
        self._objects: dict[tuple[str, str], Manifest] = {}
        self._events: list[tuple[str, str, Manifest]] = []
        self._changed = threading.Condition()
        self._versions = itertools.count(1)
        self._is_watched = False
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def find_created(self, kind: str) -> list[Manifest]:
        """Return the objects of a kind that were created, oldest first."""
        return [manifest for manifest in self.created if manifest["kind"] == kind]

    def wait_for_watched_pod(self, seconds: float = 120) -> None:
        """Wait until a pod runs and a client watches it."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: self._is_watched and self._processes and self.list_objects("pods", {}), seconds
            )

    def create_object(self, resource: str, manifest: Manifest) -> Manifest:
        """Store an object, and start the container of a pod."""
        self.created.append(json.loads(json.dumps(manifest)))
        now = dt.datetime.now(tz=dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        manifest["metadata"] |= {
            "namespace": NAMESPACE,
            "uid": str(uuid.uuid4()),
            "creationTimestamp": now,
        }
        if resource == "pods":
            manifest["status"] = {"phase": "Pending"}
        self._store_object(resource, manifest, "ADDED")
        if resource == "pods":
            threading.Thread(target=self._run_pod, args=(manifest,), daemon=True).start()
        return manifest

    def find_object(self, resource: str, name: str) -> Manifest | None:
        """Return an object."""
        return self._objects.get((resource, name))

    def list_objects(self, resource: str, query: Mapping[str, str]) -> list[Manifest]:
        """Return the objects that the selectors of a query choose."""
        return [
            manifest
            for (kind, _), manifest in list(self._objects.items())
            if kind == resource and _is_selected(manifest, query)
        ]

    def delete_object(self, resource: str, name: str) -> Manifest | None:
        """Remove an object, and end the process of a pod."""
        manifest = self._objects.pop((resource, name), None)
        if manifest is None:
            return None
        self.deleted.append(name)
        self._add_event(resource, manifest, "DELETED")
        if process := self._processes.get(name):
            process.terminate()
        return manifest

    def watch_objects(self, resource: str, query: Mapping[str, str]) -> Iterator[tuple[str, Manifest] | None]:
        """Yield each change of the chosen objects, and None while nothing changes."""
        with self._changed:
            self._is_watched = True
            self._changed.notify_all()
            position = len(self._events)
            current = [] if query.get("resourceVersion") else self.list_objects(resource, query)
            if version := query.get("resourceVersion"):
                position = next(
                    (
                        index
                        for index, (_, _, manifest) in enumerate(self._events)
                        if int(manifest["metadata"]["resourceVersion"]) > int(version)
                    ),
                    position,
                )
        yield from (("ADDED", manifest) for manifest in current)
        while True:
            with self._changed:
                self._changed.wait_for(partial(self._has_events_after, position), _WATCH_SECONDS)
                events, position = self._events[position:], len(self._events)
            yield None
            for kind, action, manifest in events:
                if kind == resource and _is_selected(manifest, query):
                    yield action, manifest

    def _has_events_after(self, position: int) -> bool:
        return len(self._events) > position

    def end_pods(self) -> None:
        """End the processes of all pods."""
        for process in self._processes.values():
            process.kill()
            process.wait()

    def _run_pod(self, pod: Manifest) -> None:
        name = pod["metadata"]["name"]
        self._set_status(pod, "Running")
        process = self._processes[name] = self._start_container(pod, self._list_mounted_files(pod))
        code = process.wait()
        self._set_status(pod, "Failed" if code else "Succeeded", code)

    def _list_mounted_files(self, pod: Manifest) -> dict[str, str]:
        """Return the files that config maps put into the container of a pod, by their path."""
        maps = {
            volume["name"]: volume["configMap"]["name"]
            for volume in pod["spec"]["volumes"]
            if "configMap" in volume
        }
        return {
            f"{mount['mountPath']}/{file}": text
            for mount in pod["spec"]["containers"][0]["volumeMounts"]
            if mount["name"] in maps
            for file, text in self._await_config_map(maps[mount["name"]])["data"].items()
        }

    def _await_config_map(self, name: str) -> Manifest:
        """Return a config map; Spark creates those of a driver after its pod."""
        with self._changed:
            self._changed.wait_for(lambda: self.find_object("configmaps", name) is not None)
            return self._objects["configmaps", name]

    def _set_status(self, pod: Manifest, phase: str, code: int | None = None) -> None:
        if self.find_object("pods", pod["metadata"]["name"]) is None:
            return
        container = pod["spec"]["containers"][0]
        status = {"name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0}
        state: Manifest = {"running": {}}
        if code is not None:
            state = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}}
        statuses = [status | {"ready": code is None, "state": state}]
        pod = pod | {"status": {"phase": phase, "podIP": "127.0.0.1", "containerStatuses": statuses}}
        self._store_object("pods", pod, "MODIFIED")

    def _store_object(self, resource: str, manifest: Manifest, action: str) -> None:
        self._objects[resource, manifest["metadata"]["name"]] = manifest
        self._add_event(resource, manifest, action)

    def _add_event(self, resource: str, manifest: Manifest, action: str) -> None:
        with self._changed:
            manifest["metadata"]["resourceVersion"] = str(next(self._versions))
            self._events.append((resource, action, json.loads(json.dumps(manifest))))
            self._changed.notify_all()


class _Handler(BaseHTTPRequestHandler):
    server: KubernetesApi
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        resource, name, query = self._parse_path()
        if self.headers.get("Upgrade"):
            # Clients watch over plain HTTP instead.
            self._answer_status(HTTPStatus.SERVICE_UNAVAILABLE, "there are no web sockets")
        elif query.get("watch") == "true":
            self._stream_changes(resource, query)
        elif name:
            self._answer_object(self.server.find_object(resource, name))
        else:
            model = _MODELS[resource].removeprefix("V1")
            items = self.server.list_objects(resource, query)
            version = max((int(item["metadata"]["resourceVersion"]) for item in items), default=0)
            self._answer(
                HTTPStatus.OK,
                {
                    "kind": f"{model}List",
                    "apiVersion": "v1",
                    "metadata": {"resourceVersion": str(version)},
                    "items": items,
                },
            )

    def do_POST(self) -> None:
        resource, _, _ = self._parse_path()
        self._create_object(resource, self._read_body())

    def do_PATCH(self) -> None:
        resource, name, _ = self._parse_path()
        manifest = self._read_body()
        stored = self.server.find_object(resource, name)
        if stored is None:
            self._create_object(resource, manifest)
        else:
            stored |= {key: value for key, value in manifest.items() if key not in {"metadata", "status"}}
            self._answer_object(stored)

    def do_DELETE(self) -> None:
        resource, name, query = self._parse_path()
        self._read_body()
        if name:
            self._answer_object(self.server.delete_object(resource, name))
            return
        for manifest in self.server.list_objects(resource, query):
            self.server.delete_object(resource, manifest["metadata"]["name"])
        self._answer(HTTPStatus.OK, {"kind": "Status", "apiVersion": "v1", "status": "Success"})

    def log_message(self, *_: Any) -> None:
        pass

    def _create_object(self, resource: str, manifest: Manifest) -> None:
        if error := find_schema_error(manifest, _MODELS[resource]):
            self._answer_status(HTTPStatus.UNPROCESSABLE_ENTITY, error)
            return
        self._answer(HTTPStatus.CREATED, self.server.create_object(resource, manifest))

    def _parse_path(self) -> tuple[str, str, dict[str, str]]:
        parts = urlsplit(self.path)
        match = _PATH.fullmatch(parts.path)
        assert match is not None, self.path
        assert match[1] in _MODELS, self.path
        return match[1], match[2] or "", {key: values[0] for key, values in parse_qs(parts.query).items()}

    def _read_body(self) -> Manifest:
        length = int(self.headers.get("Content-Length") or 0)
        # JSON, or YAML for objects that are applied.
        body: Manifest = yaml.safe_load(self.rfile.read(length)) or {}
        return body

    def _answer_object(self, manifest: Manifest | None) -> None:
        if manifest is None:
            self._answer_status(HTTPStatus.NOT_FOUND, "not found")
        else:
            self._answer(HTTPStatus.OK, manifest)

    def _answer_status(self, status: HTTPStatus, message: str) -> None:
        content = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message}
        self._answer(status, content | {"code": int(status)})

    def _answer(self, status: HTTPStatus, content: Manifest) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream_changes(self, resource: str, query: Mapping[str, str]) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        with contextlib.suppress(OSError):
            for change in self.server.watch_objects(resource, query):
                if change is not None:
                    text = json.dumps({"type": change[0], "object": change[1]}) + "\n"
                    self.wfile.write(f"{len(text.encode()):x}\r\n{text}\r\n".encode())
                elif select.select([self.connection], [], [], 0)[0]:
                    # The client has nothing to say but that it leaves.
                    return


def _remove_nulls(value: Any) -> Any:
    """Return JSON without the fields that are null, which the server ignores."""
    if isinstance(value, dict):
        return {key: _remove_nulls(item) for key, item in value.items() if item is not None}
    return [_remove_nulls(item) for item in value] if isinstance(value, list) else value


def _is_selected(manifest: Manifest, query: Mapping[str, str]) -> bool:
    """Return whether an object has the labels and the name that a query asks for."""
    labels = manifest["metadata"].get("labels") or {}
    fields = {"metadata.name": manifest["metadata"]["name"]}
    return _fits_selector(labels, query.get("labelSelector", "")) and _fits_selector(
        fields, query.get("fieldSelector", "")
    )


def _fits_selector(values: Mapping[str, str], selector: str) -> bool:
    """Return whether values fit a selector such as ``role=driver,inactive!=true``."""
    for condition in filter(None, selector.split(",")):
        name, _, value = condition.partition("=")
        if (values.get(name.rstrip("!")) == value) == name.endswith("!"):
            return False
    return True


@contextlib.contextmanager
def run_api(start_container: StartContainer) -> Iterator[KubernetesApi]:
    """Serve the API until the end, and end the processes of its pods."""
    server = KubernetesApi(start_container)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.end_pods()
        server.shutdown()
        thread.join()
        server.server_close()
