"""Follows pods with the official Python client's Watch, one thread a pod, as its documentation shows it: ``python -m bench.logs.official NAMESPACE POD...``."""

from __future__ import annotations

import sys
import threading


def main(namespace: str, pods: list[str]) -> int:
    """Print every line with its pod; 1 when a follow ended with an error."""
    from kubernetes import client, config, watch

    config.load_kube_config()
    ends: list[str] = []

    def follow(pod: str) -> None:
        try:
            # A client for each: its pool of connections is sized for the cores of this machine.
            with client.ApiClient() as api:
                reader = client.CoreV1Api(api).read_namespaced_pod_log
                for line in watch.Watch().stream(reader, pod, namespace, container="main", timestamps=True):
                    sys.stdout.write(f"[{pod}] {line}\n")
        except Exception as error:  # noqa: BLE001 - whatever it raises is how it ended
            ends.append(f"{pod}: {type(error).__name__}")

    threads = [threading.Thread(target=follow, args=(pod,)) for pod in pods]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.stdout.flush()
    for end in ends:
        print(end, file=sys.stderr)
    return 1 if ends else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
