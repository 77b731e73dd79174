"""Which cluster and user: kubectl's rules of merging, and what is refused with a next step."""

from __future__ import annotations

import base64
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from rankfall.kube.auth.kubeconfig import load_access, reread
from rankfall.kube.errors import KubeConfigError

PEM = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
B64 = base64.b64encode(PEM).decode()


def config(
    *,
    clusters: dict[str, Any] | None = None,
    users: dict[str, Any] | None = None,
    contexts: dict[str, Any] | None = None,
    current: str | None = None,
) -> dict[str, Any]:
    parts = (("cluster", clusters), ("user", users), ("context", contexts))
    made: dict[str, Any] = {"apiVersion": "v1", "kind": "Config"}
    for kind, entries in parts:
        made[f"{kind}s"] = [{"name": name, kind: fields} for name, fields in (entries or {}).items()]
    if current is not None:
        made["current-context"] = current
    return made


def one(user: dict[str, Any] | None = None, **cluster: Any) -> dict[str, Any]:
    """One cluster, user and context, all named ``a``."""
    cluster.setdefault("server", "https://a.example:6443")
    return config(
        clusters={"a": cluster}, users={"a": user or {}}, contexts={"a": {"cluster": "a", "user": "a"}}, current="a"
    )


def write(path: Path, document: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    return str(path)


def loaded(tmp_path: Path, document: Any, **how: Any) -> Any:
    return load_access(kubeconfig=write(tmp_path / "config", document), environ={}, **how)


def test_the_first_file_that_sets_a_name_wins_whole(tmp_path):
    first = config(clusters={"a": {"server": "https://first"}}, contexts={"x": {"cluster": "a", "user": "u"}})
    second = config(
        clusters={"a": {"server": "https://second", "tls-server-name": "s"}, "b": {"server": "https://b"}},
        users={"u": {"token": "two"}},
        contexts={"x": {"cluster": "b", "namespace": "n"}},
        current="x",
    )
    third = config(users={"u": {"token": "three"}}, current="y")
    paths = [write(tmp_path / name, text) for name, text in (("1", first), ("2", second), ("3", third))]
    # Missing files and empty names are skipped, a second mention changes nothing.
    listed = os.pathsep.join(["", str(tmp_path / "none"), *paths, paths[2]])
    access = load_access(environ={"KUBECONFIG": listed, "HOME": str(tmp_path)})
    assert (access.context, access.cluster, access.user, access.namespace) == ("x", "a", "u", "default")
    assert access.server == "https://first"
    assert access.endpoint.tls_server_name is None
    assert access.login.token.reveal() == "two"


def test_the_file_in_the_home_folder_and_an_explicit_one(tmp_path):
    write(tmp_path / ".kube" / "config", one(server="https://home"))
    other = write(tmp_path / "other", one(server="https://other"))
    environ = {"HOME": str(tmp_path)}
    assert load_access(environ=environ).server == "https://home"
    assert load_access(environ=environ | {"KUBECONFIG": ""}).server == "https://home"
    assert load_access(environ=environ | {"KUBECONFIG": other}).server == "https://other"
    assert load_access(kubeconfig=other, environ=environ | {"KUBECONFIG": "/none"}).server == "https://other"
    with pytest.raises(KubeConfigError, match="there is no such file"):
        load_access(kubeconfig=str(tmp_path / "none"), environ=environ)


def test_relative_paths_are_meant_from_the_folder_of_their_file(tmp_path, monkeypatch):
    plugin = {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "./bin/login"}
    user = {"client-certificate": "c.crt", "client-key": "../k.key", "tokenFile": "/abs/token", "exec": plugin}
    path = write(tmp_path / "deep" / "config", one(user, **{"certificate-authority": "ca.crt"}))
    monkeypatch.chdir(tmp_path)
    # The second file says where its own paths start, not the first one.
    empty = write(tmp_path / "empty", config())
    access = load_access(environ={"KUBECONFIG": os.pathsep.join((empty, "deep/config"))})
    folder = Path(path).parent
    assert access.endpoint.ca_file == str(folder / "ca.crt")
    assert access.login.cert_file == str(folder / "c.crt")
    assert access.login.key_file == str(folder / "../k.key")
    assert access.login.token_file == str(Path("/abs/token"))
    assert access.login.plugin.command == str(folder / "bin/login")
    assert access.login.plugin.interactive == "IfAvailable"


def test_a_bare_command_of_a_plugin_is_looked_up_on_the_path(tmp_path):
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "login", "interactiveMode": "Never"}
    assert loaded(tmp_path, one({"exec": plugin})).login.plugin.command == "login"


def test_context_and_namespace_can_be_named(tmp_path):
    document = config(
        clusters={"a": {"server": "https://a/"}, "b": {"server": "https://b/k8s/clusters/c-1/"}},
        users={"u": {"username": "bob", "password": "p"}},
        contexts={"a": {"cluster": "a", "user": "u", "namespace": "inside"}, "b": {"cluster": "b", "user": ""}},
        current="a",
    )
    assert loaded(tmp_path, document).namespace == "inside"
    assert loaded(tmp_path, document, namespace="mine").namespace == "mine"
    other = loaded(tmp_path, document, context="b")
    assert (other.server, other.namespace, other.user) == ("https://b/k8s/clusters/c-1", "default", "")
    with pytest.raises(KubeConfigError, match="has no context 'c'; it has: a, b"):
        loaded(tmp_path, document, context="c")


def test_every_field_of_cluster_and_user_arrives(tmp_path):
    user = {
        "client-certificate-data": B64,
        "client-key-data": B64,
        "token": "t",
        "tokenFile": "f",
        "as": "jane",
        "as-uid": "7",
        "as-groups": ["dev", "ops"],
        "as-user-extra": {"Scopes": ["x", "y"]},
        "extensions": [{"name": "anything", "extension": {}}],
    }
    cluster = {
        "certificate-authority-data": B64,
        "tls-server-name": "other",
        "proxy-url": "http://u:hidden@p:3128",
        "disable-compression": True,
    }
    access = loaded(tmp_path, one(user, **cluster))
    assert access.endpoint.ca_data == access.login.cert_data == PEM
    assert access.login.key_data.reveal().encode() == PEM
    assert access.login.token_file == str(tmp_path / "f")
    assert access.login.impersonate.groups == ("dev", "ops")
    assert access.login.impersonate.extra == (("Scopes", ("x", "y")),)
    assert access.endpoint.tls_server_name == "other"
    assert access.endpoint.proxy.reveal() == "http://u:hidden@p:3128"
    assert not access.endpoint.compress
    assert "hidden" not in repr(access.endpoint)


def plugin(**fields: Any) -> dict[str, Any]:
    made = {"apiVersion": "client.authentication.k8s.io/v1", "command": "c", "interactiveMode": "Never", **fields}
    return {"exec": {name: value for name, value in made.items() if value is not None}}


REFUSED = {
    "removed auth-provider": one({"auth-provider": {"name": "gcp"}}),
    "unknown field 'tokenfile'": one({"tokenfile": "x"}),
    "unknown field 'certificate-autority'": one(**{"certificate-autority": "x"}),
    "unknown field 'retries'": one(plugin(retries=1)),
    "v1alpha1' is not supported": one(plugin(apiVersion="client.authentication.k8s.io/v1alpha1")),
    "apiVersion '' is not supported": one(plugin(apiVersion=None)),
    "it has no command": one(plugin(command=None)),
    "interactiveMode is missing": one(plugin(interactiveMode=None)),
    "interactiveMode 'Sometimes' is unknown": one(plugin(interactiveMode="Sometimes")),
    "args must be a list of texts": one(plugin(args=[1])),
    "env must be a list of name and value": one(plugin(env=[{"name": "A=B", "value": "c"}])),
    "client-certificate needs client-key": one({"client-certificate": "x"}),
    "client-key needs client-certificate": one({"client-key": "x"}),
    "client-key and client-key-data are both given": one(
        {"client-key": "x", "client-key-data": B64, "client-certificate": "x"}
    ),
    "certificate-authority and certificate-authority-data are both": one(
        **{"certificate-authority": "x", "certificate-authority-data": B64}
    ),
    "insecure-skip-tls-verify and a certificate authority": one(
        **{"certificate-authority": "x", "insecure-skip-tls-verify": True}
    ),
    "must be true or false": one(**{"insecure-skip-tls-verify": "yes"}),
    "token and username are both given": one({"token": "x", "username": "y"}),
    "as-uid, as-groups or as-user-extra without as": one({"as-groups": ["x"]}),
    "has control characters": one({"as": "a\nb"}),
    "is not base64": one(**{"certificate-authority-data": "***"}),
    "it has no server": one(server=""),
    "server is not an address": one(server="a.example:6443"),
    "server holds a user name": one(server="https://bob:pw@a"),
    "proxy-url is not the address of a proxy": one(**{"proxy-url": "socks5://p:1"}),
    "clear text": one({"token": "x"}, server="http://a.example"),
    "it names no cluster": config(contexts={"a": {"user": "a"}}, current="a"),
    "has no cluster 'b'": config(contexts={"a": {"cluster": "b"}}, current="a"),
    "has no user 'b'": config(
        contexts={"a": {"cluster": "a", "user": "b"}}, clusters={"a": {"server": "https://a"}}, current="a"
    ),
    "no current context is set": config(contexts={"a": {"cluster": "a"}}),
    "two users named 'x'": {"users": [{"name": "x", "user": {}}, {"name": "x", "user": {}}]},
    "users in .* must be a list": {"users": {"x": {}}},
    "contexts in .* must be a list": {"contexts": [{"name": 7, "context": {}}]},
    "current-context in .* must be a text": {"current-context": 7},
    "it is a Pod v1": {"kind": "Pod", "apiVersion": "v1"},
    r"cannot be read as YAML fields \(line 3\)": "a: b\nsecret: [x\n",
    "cannot be read as YAML fields$": "- a\n- b\n",
    "no cluster to work with": "",
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_wrong_is_refused_with_a_next_step(tmp_path, why):
    with pytest.raises(KubeConfigError) as caught:
        loaded(tmp_path, REFUSED[why])

    assert re.search(why, caught.value.message)
    assert caught.value.hint
    assert "***" not in caught.value.message


def test_only_the_chosen_context_is_checked(tmp_path):
    document = one()
    document["users"].append({"name": "old", "user": {"auth-provider": {}}})
    assert loaded(tmp_path, document).user == "a"


@pytest.mark.parametrize("server", ["http://127.0.0.1:8001", "http://localhost:8001", "http://[::1]:8001"])
def test_credentials_may_go_in_clear_text_to_this_machine_only(tmp_path, server):
    assert loaded(tmp_path, one({"token": "x"}, server=server)).server == server


def test_a_file_that_cannot_be_read_is_an_error_and_not_skipped(tmp_path):
    good = write(tmp_path / "good", one())
    with pytest.raises(KubeConfigError, match="Is a directory"):
        load_access(environ={"KUBECONFIG": f"{tmp_path}{os.pathsep}{good}"})
    with pytest.raises(KubeConfigError, match="larger than"):
        loaded(tmp_path, "#" * (17 << 20))


def test_the_cluster_of_the_launch_stays_when_the_current_context_changes(tmp_path):
    document = one({"token": "old"})
    access = loaded(tmp_path, document)
    document["clusters"].append({"name": "b", "cluster": {"server": "https://b"}})
    document["contexts"][0]["context"] = {"cluster": "b", "user": "b"}
    document["users"] = [{"name": "b", "user": {}}, {"name": "a", "user": {"token": "new"}}]
    document["current-context"] = "b"
    write(tmp_path / "config", document)
    again = reread(access)
    assert (again.server, again.user, again.context) == (access.server, "a", "a")
    assert again.login.token.reveal() == "new"


def test_a_cluster_that_moved_is_another_cluster(tmp_path):
    access = loaded(tmp_path, one())
    write(tmp_path / "config", one(server="https://elsewhere"))
    with pytest.raises(KubeConfigError, match="is now at https://elsewhere"):
        reread(access)
    (tmp_path / "config").unlink()
    with pytest.raises(KubeConfigError, match="has no cluster 'a'"):
        reread(access)


def test_a_user_that_got_credentials_does_not_send_them_in_clear_text(tmp_path):
    access = loaded(tmp_path, one(server="http://a.example"))
    write(tmp_path / "config", one({"token": "x"}, server="http://a.example"))
    with pytest.raises(KubeConfigError, match="clear text"):
        reread(access)


def test_an_extension_without_an_end_is_left_out(tmp_path):
    text = yaml.safe_dump(one(plugin(provideClusterInfo=True), extensions="HERE"))
    rows = "[{name: client.authentication.k8s.io/exec, extension: &x [*x]}]"
    found = loaded(tmp_path, text.replace("extensions: HERE", f"extensions: {rows}"))
    assert found.login.plugin.cluster_config is None


def test_what_a_plugin_is_told_of_the_cluster(tmp_path):
    rows = [{"name": "other", "extension": 1}, {"name": "client.authentication.k8s.io/exec", "extension": {"a": [1]}}]
    document = one(plugin(provideClusterInfo=True, env=[{"name": "A", "value": "b"}], args=["x"]), extensions=rows)
    found = loaded(tmp_path, document).login.plugin
    assert found.cluster_config.reveal() == '{"a":[1]}'
    assert found.tell_cluster
    assert [(name, value.reveal()) for name, value in found.env] == [("A", "b")]
    assert [word.reveal() for word in found.args] == ["x"]
    assert loaded(tmp_path, one(plugin(), extensions=rows)).login.plugin.cluster_config is None
